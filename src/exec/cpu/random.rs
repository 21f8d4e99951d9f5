//! Random numbers from a counter: Philox 4×32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011).
//!
//! The generator's key is a hash of the session's seed and the op's key; the counter holds the
//! number of the step and that of a group of elements. An element's bits so depend on nothing else.

use super::math::Real;
use crate::ops::Distribution;

/// The random numbers of one op in one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    key: [u32; 2],
    step: [u32; 2],
}

/// Groups of 128 bits made at a time.
const GROUPS: usize = 64;

/// Steps at this number stand for "not per step": no step reaches it.
const EVERY_STEP: u64 = u64::MAX;

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every output
/// bit.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

impl Stream {
    pub fn new(seed: u64, key: u64, per_step: bool, step: u64) -> Self {
        Stream { key: split(mix(mix(seed) ^ key)), step: split(if per_step { step } else { EVERY_STEP }) }
    }

    /// Ten rounds for the groups from `first` on; word `w` of group `g` is `words[w][g]`.
    #[inline(always)]
    fn groups(&self, first: u64, words: &mut [[u32; GROUPS]; 4]) {
        let [w0, w1, w2, w3] = words;
        for (k, (w0, w1)) in w0.iter_mut().zip(w1.iter_mut()).enumerate() {
            let group = first.wrapping_add(k as u64);
            *w0 = group as u32;
            *w1 = (group >> 32) as u32;
        }
        w2.fill(self.step[0]);
        w3.fill(self.step[1]);
        let [mut k0, mut k1] = self.key;
        for _ in 0..10 {
            for k in 0..GROUPS {
                let low = u64::from(w0[k]) * 0xd251_1f53;
                let high = u64::from(w2[k]) * 0xcd9e_8d57;
                (w0[k], w1[k], w2[k], w3[k]) = (
                    (high >> 32) as u32 ^ w1[k] ^ k0,
                    high as u32,
                    (low >> 32) as u32 ^ w3[k] ^ k1,
                    low as u32,
                );
            }
            k0 = k0.wrapping_add(0x9e37_79b9);
            k1 = k1.wrapping_add(0xbb67_ae85);
        }
    }

    /// Calls `put` with the position in the block and the 32-bit word of every element from number
    /// `start` on: four elements a group.
    #[inline(always)]
    fn words(&self, start: u64, len: usize, mut put: impl FnMut(usize, u32)) {
        let mut words = [[0; GROUPS]; 4];
        let mut done = 0;
        while done < len {
            let at = start.wrapping_add(done as u64);
            self.groups(at / 4, &mut words);
            let skip = (at % 4) as usize;
            let run = (len - done).min(4 * GROUPS - skip);
            for k in 0..run {
                let place = skip + k;
                put(done + k, words[place % 4][place / 4]);
            }
            done += run;
        }
    }

    /// As `words` for 64-bit words: two elements a group.
    #[inline(always)]
    fn long_words(&self, start: u64, len: usize, mut put: impl FnMut(usize, u64)) {
        let mut words = [[0; GROUPS]; 4];
        let mut done = 0;
        while done < len {
            let at = start.wrapping_add(done as u64);
            self.groups(at / 2, &mut words);
            let skip = (at % 2) as usize;
            let run = (len - done).min(2 * GROUPS - skip);
            for k in 0..run {
                let place = skip + k;
                let (pair, group) = (place % 2 * 2, place / 2);
                put(done + k, u64::from(words[pair][group]) | u64::from(words[pair + 1][group]) << 32);
            }
            done += run;
        }
    }

    #[inline(always)]
    pub fn fill_f32(&self, distribution: Distribution, start: u64, block: &mut [f32]) {
        match distribution {
            Distribution::Normal => self.normal_f32(start, block),
            _ => self.words(start, block.len(), |k, word| block[k] = uniform_f32(word)),
        }
    }

    /// Box–Muller: elements 2k and 2k + 1 share the words 2k and 2k + 1.
    #[inline(always)]
    fn normal_f32(&self, start: u64, block: &mut [f32]) {
        let mut words = [[0; GROUPS]; 4];
        let mut values = [[0.0f32; GROUPS]; 4];
        let mut done = 0;
        while done < block.len() {
            let at = start.wrapping_add(done as u64);
            self.groups(at / 4, &mut words);
            for pair in [0, 2] {
                for k in 0..GROUPS {
                    // In (0, 1]: the logarithm is finite.
                    let u = ((words[pair][k] >> 8) + 1) as f32 * (1.0 / 16_777_216.0);
                    let radius = (-2.0 * Real::log(u)).sqrt();
                    let angle = uniform_f32(words[pair + 1][k]) * std::f32::consts::TAU;
                    values[pair][k] = radius * Real::cos(angle);
                    values[pair + 1][k] = radius * Real::sin(angle);
                }
            }
            let skip = (at % 4) as usize;
            let run = (block.len() - done).min(4 * GROUPS - skip);
            for k in 0..run {
                let place = skip + k;
                block[done + k] = values[place % 4][place / 4];
            }
            done += run;
        }
    }

    pub fn fill_f64(&self, distribution: Distribution, start: u64, block: &mut [f64]) {
        match distribution {
            Distribution::Normal => {
                for (k, x) in block.iter_mut().enumerate() {
                    let index = start.wrapping_add(k as u64);
                    let mut pair = [0; 2];
                    self.long_words(index & !1, 2, |k, word| pair[k] = word);
                    let u = ((pair[0] >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64);
                    let radius = (-2.0 * u.ln()).sqrt();
                    let angle = uniform_f64(pair[1]) * std::f64::consts::TAU;
                    *x = radius * if index.is_multiple_of(2) { angle.cos() } else { angle.sin() };
                }
            }
            _ => self.long_words(start, block.len(), |k, word| block[k] = uniform_f64(word)),
        }
    }

    pub fn fill_i32(&self, start: u64, block: &mut [i32]) {
        self.words(start, block.len(), |k, word| block[k] = word as i32);
    }

    pub fn fill_i64(&self, start: u64, block: &mut [i64]) {
        self.long_words(start, block.len(), |k, word| block[k] = word as i64);
    }

    /// Whole bytes, or with `mask` 1 bool values.
    pub fn fill_u8(&self, start: u64, block: &mut [u8], mask: u8) {
        self.words(start, block.len(), |k, word| block[k] = word as u8 & mask);
    }
}

/// A multiple of 2⁻²⁴ in [0, 1).
#[inline(always)]
fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A multiple of 2⁻⁵³ in [0, 1).
#[inline(always)]
fn uniform_f64(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published test vectors of Random123 (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_gives_the_published_words() {
        let word = |key, step, group| {
            let mut words = [[0; GROUPS]; 4];
            Stream { key, step }.groups(group, &mut words);
            [words[0][0], words[1][0], words[2][0], words[3][0]]
        };
        assert_eq!(word([0, 0], [0, 0], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            word([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            word([0xa409_3822, 0x299f_31d0], [0x1319_8a2e, 0x0370_7344], 0x85a3_08d3_243f_6a88),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
