//! The parts of a whole: those that are named and what is left add up to it.

use super::Bytes;

/// `activations 6.0 MiB, grads 2.0 MiB, all else 512.0 KiB`: the first `most` of the parts that are there,
/// and the rest of `whole`.
pub fn of(whole: u64, parts: impl IntoIterator<Item = (String, u64)>, most: usize) -> String {
    let named: Vec<(String, u64)> = parts.into_iter().filter(|(_, bytes)| *bytes > 0).take(most).collect();
    let rest = rest(whole, named.iter().map(|(_, bytes)| *bytes));
    let rest = (rest > 0).then(|| ("all else".to_owned(), rest));
    let texts: Vec<String> =
        named.into_iter().chain(rest).map(|(name, bytes)| format!("{name} {}", Bytes(bytes))).collect();
    texts.join(", ")
}

/// What is left of a whole.
pub fn rest(whole: u64, parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(whole, u64::saturating_sub)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_and_the_rest_are_the_whole() {
        let parts =
            || [("a", 3 << 20), ("none", 0), ("b", 2 << 20), ("c", 1 << 10)].map(|(n, b)| (n.to_owned(), b));
        let whole = (5 << 20) + (1 << 10);
        assert_eq!(of(whole, parts(), 9), "a 3.0 MiB, b 2.0 MiB, c 1.0 KiB");
        assert_eq!(of(whole, parts(), 2), "a 3.0 MiB, b 2.0 MiB, all else 1.0 KiB");
        assert_eq!(of(whole + 7, parts(), 9), "a 3.0 MiB, b 2.0 MiB, c 1.0 KiB, all else 7 B");
        assert_eq!((of(0, Vec::new(), 3).as_str(), rest(5, [2, 9])), ("", 0));
    }
}
