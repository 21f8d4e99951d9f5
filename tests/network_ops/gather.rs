use tg::{
    exec::Tensor,
    ir::DType,
    ops::{Gather, ScatterAdd},
};

use super::support::*;

#[test]
fn gather_values() {
    for (shape, ids_shape) in [(vec![5, 3], vec![4]), (vec![5], vec![2, 2]), (vec![4, 2, 300], vec![3, 1])] {
        let count: usize = ids_shape.iter().product();
        for dtype in [DType::I32, DType::I64, DType::U8] {
            let ids: Vec<f64> = (0..count).map(|i| (i * 3 % shape[0]) as f64).collect();
            let ids = tensor(dtype, &ids_shape, &ids);
            let width: usize = shape[1..].iter().product();
            check_values(Gather, &[random(1, &shape), ids.clone()], &[], |args| {
                let rows = args[1].iter().map(|&id| id as usize);
                vec![rows.flat_map(|id| args[0][id * width..(id + 1) * width].to_vec()).collect()]
            });
            check_composed(Gather, &[random(1, &shape), ids], &[]);
        }
    }
}

/// Tables of any element type.
#[test]
fn gather_of_other_types() {
    for dtype in DType::ALL {
        let table = tensor(dtype, &[3, 2], &[0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
        let rows = run1(Gather, &[table, ints(&[2], &[2, 0])]);
        assert_eq!((rows.dtype(), rows.shape()), (dtype, &[2, 2][..]));
        assert_eq!(values(&rows), [1.0, 1.0, 0.0, 1.0], "{dtype}");
    }
}

#[test]
fn scatter_values() {
    for (rows, row, ids_shape) in [(5, vec![3], vec![9]), (4, vec![], vec![2, 3]), (3, vec![2, 300], vec![5])]
    {
        let count: usize = ids_shape.iter().product();
        for dtype in [DType::I32, DType::I64, DType::U8] {
            let ids: Vec<f64> = (0..count).map(|i| (i * i % rows) as f64).collect();
            let ids = tensor(dtype, &ids_shape, &ids);
            let width: usize = row.iter().product();
            let values = random(2, &[ids_shape.clone(), row.clone()].concat());
            check_values(ScatterAdd { rows }, &[ids.clone(), values.clone()], &[], |args| {
                let mut sums = vec![0.0; rows * width];
                for (position, &id) in args[0].iter().enumerate() {
                    for k in 0..width {
                        sums[id as usize * width + k] += args[1][position * width + k];
                    }
                }
                vec![sums]
            });
            check_composed(ScatterAdd { rows }, &[ids, values], &[]);
        }
    }
}

#[test]
fn gradients() {
    let ids = ints(&[2, 2], &[1, 3, 1, 0]);
    check_gradients(Gather, &[random(3, &[4, 3]), ids.clone()], &[0], 1);
    check_gradients(ScatterAdd { rows: 4 }, &[ids, random(4, &[2, 2, 3])], &[1], 1);
}

/// Repeated indices add up, rows that no index names are exactly 0.
#[test]
fn repeated_indices() {
    let dx = run1(ScatterAdd { rows: 3 }, &[ints(&[2], &[0, 0]), tensor(DType::F32, &[2], &[0.2, 0.3])]);
    let dx = dx.as_slice::<f32>().expect("f32");
    assert_eq!(dx, [0.2f32 + 0.3, 0.0, 0.0]);
    assert!(dx.iter().all(|d| d.is_sign_positive()));
    // bf16 alone would stay at 256·2⁻⁸ = 1.
    let ids = Tensor::from_slice(&[1000], &[1i32; 1000]).expect("1000 indices");
    let ones = tensor(DType::BF16, &[1000, 2], &[1.0 / 256.0; 2000]);
    let sums = values(&run1(ScatterAdd { rows: 2 }, &[ids, ones]));
    assert_close(&sums, &[0.0, 0.0, 3.90625, 3.90625], 1e-2, "sums");
}

#[test]
fn wrong_indices() {
    let table = random(5, &[3, 2]);
    let error = try_run(Gather, &[table.clone(), ints(&[2], &[0, 3])]).expect_err("out of range");
    assert_eq!(error, "`gather`: index 3 at position 1 is outside 0 ≤ index < 3");
    let error = try_run(Gather, &[table, ints(&[2], &[-1, 7])]).expect_err("negative");
    assert_eq!(error, "`gather`: index -1 at position 0 is outside 0 ≤ index < 3");
    let error =
        try_run(ScatterAdd { rows: 2 }, &[ints(&[1], &[2]), random(6, &[1])]).expect_err("out of range");
    assert_eq!(error, "`scatter_add`: index 2 at position 0 is outside 0 ≤ index < 2");
    let big = Tensor::from_slice(&[1], &[i64::MAX]).expect("one index");
    let error = try_run(Gather, &[random(7, &[2]), big]).expect_err("out of range");
    assert!(error.contains("9223372036854775807"), "{error}");
}
