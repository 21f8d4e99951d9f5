//! The command itself: what it prints where, and its exit codes.

use tg::report::explain::PAGES;

/// The `tg` blocks of a page.
fn programs(page: &str) -> Vec<String> {
    let mut programs = Vec::new();
    let mut current: Option<String> = None;
    for line in page.lines() {
        match (&mut current, line) {
            (None, "```tg") => current = Some(String::new()),
            (Some(_), "```") => programs.extend(current.take()),
            (Some(text), line) => *text += &format!("{line}\n"),
            _ => {}
        }
    }
    programs
}

fn syntax_errors(text: &str) -> Vec<String> {
    let (_, errors) = tg::syntax::parse(Default::default(), text);
    errors.iter().map(|d| format!("{} {}", d.code.0, d.message)).collect()
}

#[test]
fn every_code_has_a_page_and_every_page_a_code() {
    let titles: Vec<_> = tg::codes::ALL.iter().chain(tg::syntax::codes::ALL).collect();
    let mut codes: Vec<&str> = titles.iter().map(|(code, _)| code.0).collect();
    codes.sort_unstable();
    codes.dedup();
    let pages: Vec<&str> = PAGES.iter().map(|(code, _)| *code).collect();
    assert_eq!(pages, codes);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explain");
    let mut files: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, pages.iter().map(|p| format!("{p}.md")).collect::<Vec<_>>());
    for (code, title) in titles {
        let page = tg::report::explain::page(code.0).unwrap();
        assert_eq!(page.lines().next(), Some(format!("# {}: {title}", code.0).as_str()));
    }
}

#[test]
fn pages_on_syntax_show_what_they_say() {
    for (code, page) in PAGES {
        let programs = programs(page);
        let (wrong, right) = match programs.as_slice() {
            // Nobody wants to see what is nested too deep.
            [right] if *code == "TG0108" => (None, Some(right)),
            [wrong] => (Some(wrong), None),
            [wrong, right] => (Some(wrong), Some(right)),
            [] => (None, None),
            _ => panic!("{code} has {} programs", programs.len()),
        };
        if let Some(wrong) = wrong {
            let errors = syntax_errors(wrong);
            if code.starts_with("TG01") {
                assert!(errors.iter().any(|e| e.starts_with(code)), "{code}: {errors:?}");
            } else {
                assert!(errors.is_empty(), "{code}: {errors:?}");
            }
        }
        if let Some(right) = right {
            assert_eq!(syntax_errors(right), Vec::<String>::new(), "{code}");
        }
    }
}
