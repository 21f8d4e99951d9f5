//! The pages of `tg explain`, one for each code, in `docs/explain/`.
//!
//! A page starts with `# TG0201: title`. Its first `tg` block is a program that shows the
//! diagnostic, its second one the same program without it; a test holds them to that.

macro_rules! pages {
    ($($code:literal)*) => {
        /// Code and text of every page, ascending.
        pub const PAGES: &[(&str, &str)] = &[
            $(($code, include_str!(concat!("../../docs/explain/", $code, ".md")))),*
        ];
    };
}

pages! {
    "TG0101" "TG0102" "TG0103" "TG0104" "TG0105" "TG0106" "TG0107" "TG0108" "TG0109"
    "TG0110" "TG0111" "TG0112" "TG0113" "TG0114" "TG0115"
    "TG0201" "TG0202" "TG0203" "TG0204" "TG0205" "TG0206" "TG0207" "TG0208" "TG0210"
    "TG0211" "TG0212" "TG0213" "TG0214" "TG0215" "TG0216" "TG0217" "TG0218" "TG0219" "TG0220"
    "TG0221" "TG0222" "TG0223" "TG0230" "TG0231" "TG0232" "TG0233" "TG0234" "TG0235"
    "TG0236" "TG0237" "TG0238" "TG0239" "TG0241"
    "TG0301" "TG0302" "TG0303" "TG0304" "TG0305" "TG0306" "TG0307" "TG0308" "TG0309"
    "TG0310" "TG0311" "TG0312" "TG0313" "TG0314" "TG0315" "TG0316" "TG0317" "TG0318"
    "TG0319" "TG0320" "TG0321" "TG0322" "TG0323" "TG0330" "TG0331" "TG0332" "TG0333" "TG0334" "TG0335" "TG0336"
    "TG0338"
    "TG0340" "TG0341" "TG0342" "TG0344" "TG0347"
    "TG0401" "TG0402" "TG0403" "TG0404" "TG0405" "TG0406" "TG0407" "TG0408" "TG0409" "TG0410"
    "TG0901"
}

/// The page of a code, in any case: `tg0201` will do, and so will `201`.
pub fn page(code: &str) -> Option<&'static str> {
    let is_number = !code.is_empty() && code.len() <= 4 && code.bytes().all(|b| b.is_ascii_digit());
    let padded = if is_number { format!("TG{code:0>4}") } else { code.to_owned() };
    let code = padded.as_str();
    PAGES.iter().find(|(c, _)| c.eq_ignore_ascii_case(code)).map(|(_, text)| *text)
}

/// The title of a page, without its code.
pub fn title(page: &str) -> &str {
    page.lines().next().and_then(|l| l.split_once(": ")).map_or("", |(_, title)| title)
}

/// Codes that somebody who wrote `wrong` may have meant, best first: those with a digit or two
/// wrong, or with the prefix left out.
pub fn similar(wrong: &str) -> Vec<&'static str> {
    let wrong = wrong.trim().to_ascii_uppercase();
    let digits: String = wrong.chars().filter(char::is_ascii_digit).collect();
    let padded = (digits.len() >= 3).then(|| format!("TG{digits:0>4}"));
    let mut found: Vec<(usize, &str)> = PAGES
        .iter()
        .map(|(code, _)| {
            let direct = distance(&wrong, code);
            (padded.as_ref().map_or(direct, |p| direct.min(distance(p, code))), *code)
        })
        .filter(|(d, _)| *d <= 2)
        .collect();
    found.sort();
    let best = found.first().map_or(0, |(d, _)| *d);
    found.into_iter().filter(|(d, _)| *d == best).take(3).map(|(_, code)| code).collect()
}

/// Levenshtein's distance.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut next = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let replaced = row.get(j).copied().unwrap_or(0) + usize::from(ca != *cb);
            let inserted = next.get(j).copied().unwrap_or(0) + 1;
            let deleted = row.get(j + 1).copied().unwrap_or(0) + 1;
            next.push(replaced.min(inserted).min(deleted));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_pages_and_suggests_others() {
        assert_eq!(title(page("tg0201").unwrap()), "a name that nothing in scope defines");
        assert!(page("TG9999").is_none());
        assert_eq!(page("340"), page("TG0340"));
        assert_eq!(page("0340"), page("TG0340"));
        assert!(page("").is_none());
        assert_eq!(similar("TG201").first(), Some(&"TG0201"));
        assert_eq!(similar("TG020l").first(), Some(&"TG0201"));
        assert!(similar("nonsense words").is_empty());
    }
}
