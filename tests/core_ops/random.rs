//! Random numbers: distribution, keys, independence of blocking.

use tg::{
    exec::Tensor,
    ir::DType,
    ops::{Distribution, Random, Reshape, Slice, SliceRange},
};

use super::harness::*;
use crate::device::eval;

fn draw(dtype: DType, distribution: Distribution, shape: &[usize], key: u64) -> Tensor {
    run1(&[], &|graph, _| {
        graph.value(Random { ty: ty(dtype, shape), distribution, key, per_step: true }, &[])
    })
}

#[test]
fn uniform_numbers_are_multiples_of_their_unit_in_the_unit_interval() {
    let n = 100_000;
    for (dtype, unit) in [(DType::F32, -24), (DType::F64, -53), (DType::F16, -24), (DType::BF16, -24)] {
        let xs = values(&draw(dtype, Distribution::Uniform, &[n], 5));
        assert!(xs.iter().all(|&x| (0.0..1.0).contains(&x)), "{dtype}");
        assert!(xs.iter().all(|&x| (x * 2f64.powi(-unit)).fract() == 0.0), "{dtype}");
        let mean = xs.iter().sum::<f64>() / n as f64;
        let square = xs.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005 && (square - 1.0 / 3.0).abs() < 0.005, "{dtype}: {mean} {square}");
        let mut buckets = [0; 16];
        xs.iter().for_each(|x| buckets[(x * 16.0) as usize] += 1);
        assert!(buckets.iter().all(|&b| (b as f64 - n as f64 / 16.0).abs() < 400.0), "{dtype}: {buckets:?}");
    }
}

#[test]
fn normal_numbers_have_the_right_moments() {
    let n = 200_000;
    for dtype in FLOATS {
        let xs = values(&draw(dtype, Distribution::Normal, &[n], 9));
        let moment = |k: i32| xs.iter().map(|x| x.powi(k)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.02, "{dtype}");
        assert!(moment(3).abs() < 0.05 && (moment(4) - 3.0).abs() < 0.1, "{dtype}");
        let pairs: f64 = xs.chunks(2).map(|pair| pair[0] * pair[1]).sum();
        assert!(pairs.abs() / (n as f64) < 0.01, "{dtype}: neighbours are correlated");
    }
}

#[test]
fn bits_take_every_value() {
    let bytes = draw(DType::U8, Distribution::Bits, &[10_000], 1);
    let mut seen = [false; 256];
    bytes.as_slice::<u8>().unwrap().iter().for_each(|&b| seen[b as usize] = true);
    assert!(seen.iter().all(|&s| s));
    let bools = draw(DType::Bool, Distribution::Bits, &[10_000], 1);
    let set = bools.as_slice::<bool>().unwrap().iter().filter(|&&b| b).count();
    assert!((4800..5200).contains(&set), "{set}");
    for dtype in [DType::I32, DType::I64] {
        let xs = values(&draw(dtype, Distribution::Bits, &[1000], 1));
        let negative = xs.iter().filter(|&&x| x < 0.0).count();
        assert!((400..600).contains(&negative), "{dtype}: {negative}");
    }
}

#[test]
fn an_element_depends_on_key_seed_step_and_index_only() {
    for (dtype, distribution) in [
        (DType::F32, Distribution::Uniform),
        (DType::F32, Distribution::Normal),
        (DType::F64, Distribution::Normal),
        (DType::BF16, Distribution::Normal),
        (DType::I32, Distribution::Bits),
        (DType::I64, Distribution::Bits),
    ] {
        let long = draw(dtype, distribution, &[5000], 11);
        for n in [1, 2, 3, 5, 511, 513, 1023, 1027] {
            let short = draw(dtype, distribution, &[n], 11);
            assert_eq!(short.bytes(), &long.bytes()[..short.bytes().len()], "{dtype} {distribution:?} {n}");
        }
        let square = draw(dtype, distribution, &[50, 100], 11);
        assert_eq!(square.bytes(), long.bytes());
        assert_ne!(draw(dtype, distribution, &[5000], 12), long);
        let random = |per_step| Random { ty: ty(dtype, &[100]), distribution, key: 11, per_step };
        let graph = graph(&[], &|graph, _| {
            Ok(vec![graph.value(random(true), &[])?, graph.value(random(false), &[])?])
        });
        let at = |seed, step| {
            let page = tg::exec::cpu::ScalarPage { values: Vec::new(), seed, step };
            eval(&graph, &mut [], &[], &page).expect("runs")
        };
        let (a, b, c) = (at(1, 0), at(1, 1), at(2, 0));
        assert!(a[0] != b[0] && a[1] == b[1] && a[0] != c[0] && a[1] != c[1] && a[0] != a[1]);
    }
}

#[test]
fn a_fused_draw_has_the_bits_of_a_plain_one() {
    let shape = [37, 29];
    run_both(&[tensor(DType::F32, &shape, &noise(37 * 29, 4))], &|graph, args| {
        let random =
            Random { ty: ty(DType::F32, &shape), distribution: Distribution::Normal, key: 3, per_step: true };
        let random = graph.value(random, &[])?;
        let sum = graph.add(args[0], random)?;
        let flat = graph.value(Reshape { shape: [37 * 29].into() }, &[random])?;
        let range = SliceRange { start: 100, step: 3, size: 50 };
        Ok(vec![sum, graph.value(Slice { ranges: [range].into() }, &[flat])?])
    });
    same_on_all_threads(&[], &|graph, _| {
        let random = Random {
            ty: ty(DType::F32, &[300_001]),
            distribution: Distribution::Normal,
            key: 3,
            per_step: true,
        };
        Ok(vec![graph.value(random, &[])?])
    });
}
