use std::{fs, path::Path};

use tg::{
    diagnose,
    diagnostic::{Diagnostic, Savings},
    edits,
    engine::{Checked, CompileOptions, Engine, Source},
    plan::{BufferKind, Plan},
    source::Span,
};

pub const MIB: u64 = 1 << 20;

pub fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/field/{name}.tg"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn check_set(name: &str, sets: &[(&str, &str)]) -> Checked {
    let options = CompileOptions {
        memory: Some(diagnose::Options { fixes: true, all: true, library_frames: false }),
        sets: sets.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        ..CompileOptions::default()
    };
    Engine::new().check(Source::text(format!("{name}.tg"), text(name)), &options)
}

pub fn check(name: &str) -> Checked {
    check_set(name, &[])
}

pub fn codes(checked: &Checked) -> Vec<&'static str> {
    checked.diagnostics.iter().map(|d| d.code.0).collect()
}

pub fn find<'a>(checked: &'a Checked, code: &str) -> &'a Diagnostic {
    let found = checked.diagnostics.iter().find(|d| d.code.0 == code);
    found.unwrap_or_else(|| panic!("{code} is not among {:?}", checked.diagnostics))
}

/// The code that a label stands at.
pub fn at(checked: &Checked, span: Span) -> String {
    checked.sources.text(span).to_owned()
}

pub fn places(checked: &Checked, d: &Diagnostic) -> Vec<String> {
    std::iter::once(&d.primary).chain(&d.secondary).map(|l| at(checked, l.span)).collect()
}

pub fn savings(d: &Diagnostic) -> Savings {
    d.savings().unwrap_or_else(|| panic!("no savings: {d:?}"))
}

pub fn peak(checked: &Checked) -> u64 {
    checked.plans[0].peak_bytes()
}

/// Compiles the program with the best fix of a diagnostic: the peak is the promised one.
pub fn fixed(name: &str, sets: &[(&str, &str)], d: &Diagnostic) -> Checked {
    let changed = edits::apply(&text(name), &d.fixes[0].edits).unwrap();
    let options = CompileOptions {
        sets: sets.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        ..CompileOptions::default()
    };
    let after = Engine::new().check(Source::text("fixed.tg", changed), &options);
    assert!(after.is_sound(), "{:?}", after.diagnostics);
    assert_eq!(peak(&after), savings(d).peak_after);
    after
}

pub fn quiet(name: &str) -> Checked {
    let checked = check(name);
    assert!(checked.diagnostics.is_empty(), "{name}: {:?}", checked.diagnostics);
    checked
}

/// The program of a text, on so many ranks.
pub fn check_text(text: &str, world: Option<u32>) -> Checked {
    let options = CompileOptions {
        memory: Some(diagnose::Options { fixes: true, all: true, library_frames: false }),
        world,
        ..CompileOptions::default()
    };
    let checked = Engine::new().check(Source::text("program.tg", text), &options);
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    checked
}

pub fn plan<'a>(checked: &'a Checked, step: &str) -> &'a Plan {
    let found = checked.plans.iter().find(|p| &*p.name == step);
    found.unwrap_or_else(|| panic!("no step `{step}`, but {:?}", checked.diagnostics))
}

/// The most that any legal order of a step has alive, with what is persistent.
pub fn worst(plan: &Plan) -> u64 {
    plan.persistent_bytes + tg::schedule::worst_order(&plan.schedule_graph, &Default::default()).bytes
}

/// Runs a program, and gives what parameters and states hold afterwards.
pub fn values_after(text: &str, names: &[&str]) -> Vec<Vec<f64>> {
    let program = Engine::new().compile(Source::text("program.tg", text)).unwrap_or_else(|e| panic!("{e}"));
    let mut session = program.session().unwrap();
    session.run().unwrap_or_else(|e| panic!("{e}"));
    let value = |name: &&str| {
        let value = session.get(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tensor = value.as_tensor().expect("a tensor");
        (0..tensor.ty().elements()).map(|k| tensor.get_f64(k).expect("an element")).collect()
    };
    names.iter().map(value).collect()
}

/// Buffers of a plan that hold a value of some kind.
pub fn buffers_of(plan: &Plan, kind: BufferKind) -> Vec<u64> {
    plan.buffers.iter().filter(|b| b.kind == kind).map(|b| b.dense_bytes).collect()
}
