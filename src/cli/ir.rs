//! `tg ir`: the graphs of the steps, as text.

use super::{args, steps::no_step};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::{Checked, CompileOptions, Engine, Planning},
    ir, lower,
    source::Span,
    terminal::{Exit, output::Output, source, tell},
};

pub fn run(args: &args::Ir, output: &mut Output) -> Exit {
    let options = CompileOptions { planning: Planning::Nothing, ..args.compile.options() };
    let checked = match source::read(&args.file) {
        Ok(source) => Engine::new().check(source, &options),
        Err(error) => return tell::fail(&error, output),
    };
    match text(args, &checked) {
        Ok(text) => output.out(&text),
        Err(error) => return tell::fail(&error, output),
    };
    tell::show(&checked.diagnostics, &checked.sources, output);
    if checked.is_sound() { Exit::Success } else { Exit::Errors }
}

fn text(args: &args::Ir, checked: &Checked) -> Result<String, Error> {
    let fault = |diagnostic: Diagnostic| Error::new(vec![diagnostic], checked.sources.clone());
    let wanted: Vec<_> = checked
        .graphs
        .iter()
        .filter(|(name, _)| args.step.as_deref().is_none_or(|wanted| wanted == &**name))
        .collect();
    if let Some(name) = &args.step
        && wanted.is_empty()
        && checked.is_sound()
    {
        return Err(fault(no_step(name, checked)));
    }
    let mut texts = Vec::new();
    for (name, graph) in wanted {
        let printed = match args.after {
            args::Phase::Elaborate => ir::text::print(graph, Some(&checked.sources)),
            args::Phase::Lower => {
                let lowered = lower::lower(graph).map_err(|error| {
                    fault(Diagnostic::error(codes::INTERNAL, Span::default(), error.message))
                })?;
                ir::text::print(&lowered, Some(&checked.sources))
            }
        };
        texts.push(format!("# step {name}\n{printed}"));
    }
    Ok(texts.join("\n"))
}
