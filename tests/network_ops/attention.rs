use tg::{
    exec::Tensor,
    ir::DType,
    ops::{Attention, AttentionGrad, Number},
};

use super::support::*;

struct Case {
    heads: (usize, usize),
    queries: usize,
    keys: usize,
    depth: usize,
    values: usize,
    causal: bool,
}

const SCALE: f64 = 0.7;

impl Case {
    fn new([b, h, t, s, d, e]: [usize; 6], causal: bool) -> Case {
        Case { heads: (b, h), queries: t, keys: s, depth: d, values: e, causal }
    }

    fn args(&self) -> [Tensor; 3] {
        let (b, h) = self.heads;
        [
            random(1, &[b, h, self.queries, self.depth]),
            random(2, &[b, h, self.keys, self.depth]),
            random(3, &[b, h, self.keys, self.values]),
        ]
    }

    fn op(&self) -> Attention {
        Attention { causal: self.causal, scale: Number::float(SCALE) }
    }

    fn grad_op(&self) -> AttentionGrad {
        AttentionGrad { causal: self.causal, scale: Number::float(SCALE) }
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        !self.causal || key + self.queries <= query + self.keys
    }

    /// For each head and query: the probabilities of the keys, and the log-sum-exp.
    fn probabilities(&self, args: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<f64>) {
        let (mut rows, mut lse) = (Vec::new(), Vec::new());
        for head in 0..self.heads.0 * self.heads.1 {
            for query in 0..self.queries {
                let q = &args[0][(head * self.queries + query) * self.depth..][..self.depth];
                let exp: Vec<f64> = (0..self.keys)
                    .map(|key| {
                        let k = &args[1][(head * self.keys + key) * self.depth..][..self.depth];
                        let score: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        if self.sees(query, key) { (score * SCALE).exp() } else { 0.0 }
                    })
                    .collect();
                let total: f64 = exp.iter().sum();
                lse.push(total.ln());
                rows.push(exp.iter().map(|e| if total == 0.0 { 0.0 } else { e / total }).collect());
            }
        }
        (rows, lse)
    }

    fn check(&self) {
        check_values(self.op(), &self.args(), &[], |args| {
            let (p, lse) = self.probabilities(args);
            let mut o = Vec::new();
            for (row, p) in p.iter().enumerate() {
                let head = row / self.queries;
                for e in 0..self.values {
                    let v = |key: usize| args[2][(head * self.keys + key) * self.values + e];
                    o.push(p.iter().enumerate().map(|(key, p)| p * v(key)).sum());
                }
            }
            vec![o, lse]
        });
    }

    fn grad_args(&self) -> Vec<Tensor> {
        let [q, k, v] = self.args();
        let forward = run(self.op(), &[q.clone(), k.clone(), v.clone()]);
        let g = random(4, forward[0].shape());
        vec![q, k, v, forward[0].clone(), forward[1].clone(), g]
    }

    fn check_composed(&self) {
        check_composed(self.op(), &self.args(), &[]);
        check_composed(self.grad_op(), &self.grad_args(), &[4]);
    }
}

#[test]
fn values_in_every_type() {
    for causal in [false, true] {
        for sizes in [
            [2, 2, 5, 5, 4, 3],
            [1, 1, 1, 1, 1, 1],
            // More and fewer keys than queries; in the second, the first queries see nothing.
            [1, 2, 3, 7, 4, 4],
            [1, 2, 7, 3, 4, 5],
            // Several tiles of queries and keys, none of them full.
            [1, 2, 150, 150, 8, 6],
            [1, 1, 70, 300, 16, 8],
            [1, 1, 200, 90, 5, 5],
        ] {
            let case = Case::new(sizes, causal);
            case.check();
            case.check_composed();
        }
    }
}

#[test]
fn gradients() {
    for causal in [false, true] {
        for sizes in [[1, 2, 4, 4, 3, 2], [1, 1, 3, 5, 2, 3], [1, 1, 5, 3, 2, 2]] {
            let case = Case::new(sizes, causal);
            check_gradients(case.op(), &case.args(), &[0, 1, 2], 1);
        }
        // Through the log-sum-exp too, where every query sees a key.
        let case = Case::new([1, 1, 3, 4, 2, 3], causal);
        check_gradients(case.op(), &case.args(), &[0, 1, 2], 2);
    }
}

/// Queries that see nothing: 0s, −∞, and no gradient; the others are as if those were not there.
#[test]
fn queries_without_keys() {
    let case = Case::new([1, 1, 4, 2, 3, 3], true);
    let forward = run(case.op(), &case.args());
    assert_eq!(values(&forward[0])[..6], [0.0; 6]);
    assert_eq!(values(&forward[1])[..2], [-f64::INFINITY; 2]);
    let gradients = run(case.grad_op(), &case.grad_args());
    assert_eq!(values(&gradients[0])[..6], [0.0; 6]);
    assert!(gradients.iter().flat_map(values).all(f64::is_finite));
}

/// No keys at all: everything is 0.
#[test]
fn no_keys() {
    for causal in [false, true] {
        let case = Case::new([1, 2, 3, 0, 4, 2], causal);
        let forward = run(case.op(), &case.args());
        assert_eq!(values(&forward[0]), [0.0; 12]);
        assert_eq!(values(&forward[1]), [-f64::INFINITY; 6]);
        let gradients = run(case.grad_op(), &case.grad_args());
        assert_eq!(values(&gradients[0]), [0.0; 24]);
    }
}

/// Scores far beyond what exp can hold.
#[test]
fn large_scores() {
    let q = tensor(DType::F32, &[1, 1, 1, 1], &[1000.0]);
    let k = tensor(DType::F32, &[1, 1, 3, 1], &[1.0, 3.0, 2.0]);
    let v = tensor(DType::F32, &[1, 1, 3, 1], &[1.0, 2.0, 3.0]);
    let op = Attention { causal: false, scale: Number::float(1.0) };
    let results = run(op, &[q, k, v]);
    assert_eq!(values(&results[0]), [2.0]);
    assert_eq!(values(&results[1]), [3000.0]);
}
