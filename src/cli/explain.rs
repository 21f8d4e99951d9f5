//! `tg explain`: the pages on diagnostics.

use super::args;
use crate::{
    report::{explain, style::Part},
    terminal::{Exit, output::Output},
};

pub fn run(args: &args::Explain, output: &mut Output) -> Exit {
    let Some(code) = &args.code else {
        let style = output.out_style;
        let list: String = explain::PAGES
            .iter()
            .map(|(code, page)| format!("{}  {}\n", style.paint(Part::Strong, code), explain::title(page)))
            .collect();
        output.out(&list);
        return Exit::Success;
    };
    match explain::page(code) {
        Some(page) => {
            output.out(page);
            Exit::Success
        }
        None => {
            let shown = crate::report::visible::line(code, 80).into_owned();
            let mut text = format!("error: there is no diagnostic `{shown}`\n");
            let similar = explain::similar(code);
            if !similar.is_empty() {
                let list: Vec<String> = similar.iter().map(|c| format!("`{c}`")).collect();
                text.push_str(&format!("help: did you mean {}?\n", list.join(" or ")));
            }
            text.push_str("help: `tg explain` lists all\n");
            output.err(&text);
            Exit::Errors
        }
    }
}
