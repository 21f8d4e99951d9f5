//! One JSON object a diagnostic.
//!
//! Lines and columns count from 1, columns in characters; ends are exclusive. `labels` starts with
//! the primary one. Names are stable; more may be added.

use serde_json::{Map, Value};

use super::{has_place, severity_name};
use crate::{
    codes,
    diagnostic::{Diagnostic, Edit, Fix, Label, Savings},
    source::{SourceMap, Span},
};

/// The object on one line, with a line end.
pub fn render(diagnostic: &Diagnostic, sources: &SourceMap) -> String {
    let mut text = value(diagnostic, sources).to_string();
    text.push('\n');
    text
}

pub fn value(diagnostic: &Diagnostic, sources: &SourceMap) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), diagnostic.code.0.into());
    object.insert("severity".into(), severity_name(diagnostic.severity).into());
    object.insert("message".into(), diagnostic.message.as_str().into());
    let is_placed = has_place(diagnostic, sources);
    place(&mut object, Some(diagnostic.primary.span).filter(|_| is_placed), sources);
    // What is about a file as a whole has no line, and still a file.
    let file = sources.get(diagnostic.primary.span.file).filter(|_| diagnostic.code == codes::FILE);
    if let (false, Some(file)) = (is_placed, file) {
        object.insert("file".into(), file.name.as_str().into());
    }
    let labels = std::iter::once((&diagnostic.primary, true))
        .filter(|_| is_placed)
        .chain(diagnostic.secondary.iter().map(|l| (l, false)))
        .map(|(l, primary)| label(l, primary, sources));
    object.insert("labels".into(), labels.collect());
    object.insert("notes".into(), diagnostic.notes.clone().into());
    object.insert("help".into(), diagnostic.help.clone().into());
    object.insert("fixes".into(), diagnostic.fixes.iter().map(|f| fix(f, sources)).collect());
    savings(&mut object, diagnostic.savings());
    Value::Object(object)
}

/// Of the best fix, or of one fix; `null` throughout where nothing was planned.
fn savings(object: &mut Map<String, Value>, savings: Option<Savings>) {
    object.insert("saves_bytes".into(), savings.map(|s| s.saves_bytes()).into());
    object.insert("peak_before".into(), savings.map(|s| s.peak_before).into());
    object.insert("peak_after".into(), savings.map(|s| s.peak_after).into());
    object.insert("worst_before".into(), savings.map(|s| s.worst_before).into());
    object.insert("worst_after".into(), savings.map(|s| s.worst_after).into());
    object.insert("work_before".into(), savings.map(|s| s.work_before).into());
    object.insert("work_after".into(), savings.map(|s| s.work_after).into());
}

fn label(label: &Label, primary: bool, sources: &SourceMap) -> Value {
    let mut object = Map::new();
    object.insert("message".into(), label.text.as_str().into());
    object.insert("primary".into(), primary.into());
    place(&mut object, Some(label.span), sources);
    Value::Object(object)
}

fn fix(fix: &Fix, sources: &SourceMap) -> Value {
    let edits: Vec<Value> = fix.edits.iter().map(|e| edit(e, sources)).collect();
    let mut object = Map::new();
    object.insert("title".into(), fix.title.as_str().into());
    object.insert("keeps_results".into(), fix.keeps_results().into());
    object.insert("edits".into(), edits.into());
    savings(&mut object, fix.savings);
    Value::Object(object)
}

fn edit(edit: &Edit, sources: &SourceMap) -> Value {
    let mut object = Map::new();
    place(&mut object, Some(edit.span), sources);
    object.insert("text".into(), edit.text.as_str().into());
    Value::Object(object)
}

/// `null` throughout for a diagnostic about no place.
fn place(object: &mut Map<String, Value>, span: Option<Span>, sources: &SourceMap) {
    let span = span.filter(|s| sources.get(s.file).is_some());
    let file = span.and_then(|s| sources.get(s.file));
    let start = span.map(|s| sources.start(s));
    let end = span.map(|s| sources.end(s));
    object.insert("file".into(), file.map(|f| f.name.as_str()).into());
    object.insert("line".into(), start.map(|p| p.line).into());
    object.insert("column".into(), start.map(|p| p.column).into());
    object.insert("end_line".into(), end.map(|p| p.line).into());
    object.insert("end_column".into(), end.map(|p| p.column).into());
}
