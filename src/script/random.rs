//! Random numbers for scripts: shuffles, windows, samples.

/// A counter-based generator: number `k` is a hash of the seed and `k` alone (SplitMix64: Steele,
/// Lea and Flood, OOPSLA 2014), so the same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Random {
    seed: u64,
    counter: u64,
}

impl Random {
    /// `stream` keeps uses of one seed apart.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random { seed: mix(seed ^ mix(stream)), counter: 0 }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        mix(self.seed.wrapping_add(self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in [0, 1), with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0 … n - 1 without bias (Lemire 2019); 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        // Of the 2^64 numbers, this many at the low end of each product would favour some results.
        let biased = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= biased {
                return (product >> 64) as u64;
            }
        }
    }

    /// 0 … n - 1 in random order (Fisher and Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            let j = self.below(i as u64 + 1) as usize;
            order.swap(i, j);
        }
        order
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_even() {
        // 24 orders of 4, 24,000 draws: each about 1000, within five standard deviations.
        let mut counts = std::collections::HashMap::new();
        let mut random = Random::new(7, 0);
        for _ in 0..24_000 {
            *counts.entry(random.permutation(4)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|&c| (845..1155).contains(&c)), "{counts:?}");
    }

    #[test]
    fn below_covers_its_range_only() {
        let mut random = Random::new(1, 2);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            if let Some(count) = seen.get_mut(random.below(7) as usize) {
                *count += 1;
            }
        }
        assert_eq!(seen.iter().sum::<u32>(), 7000);
        assert!(seen.iter().all(|&c| (840..1160).contains(&c)), "{seen:?}");
        assert_eq!(random.below(1), 0);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn seeds_and_streams_differ() {
        let first = |seed, stream| Random::new(seed, stream).next_u64();
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(0, 1));
        assert_ne!(first(1, 0), first(1, 1));
    }
}
