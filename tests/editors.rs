//! The syntax files of editors know every word of the grammar.

use std::{fs, path::Path};

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The keywords, reserved and contextual: `"word" => Token::Word` in the grammar.
fn words() -> Vec<String> {
    let grammar = text("grammar/tg.lalrpop");
    let words = grammar.lines().filter_map(|line| {
        let (word, token) = line.trim().strip_prefix('"')?.split_once("\" => Token::")?;
        let is_word = word.bytes().all(|b| b.is_ascii_lowercase());
        // Those that carry a text are no keywords.
        (is_word && !token.contains('(') && word != "invalid" && word != "separator").then(|| word.to_owned())
    });
    words.collect()
}

fn knows(syntax: &str, word: &str) -> bool {
    syntax.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|known| known == word)
}

#[test]
fn syntax_files_know_every_keyword() {
    let words = words();
    assert!(words.len() > 30, "{words:?}");
    for path in ["editors/vim/syntax/tg.vim", "editors/vscode/syntaxes/tg.tmLanguage.json"] {
        let syntax = text(path);
        let missing: Vec<&String> = words.iter().filter(|word| !knows(&syntax, word)).collect();
        assert!(missing.is_empty(), "{path} lacks {missing:?}");
    }
}

#[test]
fn the_files_of_the_extension_are_json() {
    for path in ["package.json", "language-configuration.json", "syntaxes/tg.tmLanguage.json"] {
        let parsed: Result<serde_json::Value, _> =
            serde_json::from_str(&text(&format!("editors/vscode/{path}")));
        assert!(parsed.is_ok(), "{path}: {parsed:?}");
    }
}
