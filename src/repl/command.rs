//! The commands of the interactive session: lines that start with `:`.

/// What a line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `:help`, `:help NAME`
    Help(Option<String>),
    /// `:type EXPR`
    Type(String),
    /// `:plan`, `:plan STEP`
    Plan(Option<String>),
    /// `:ir`, `:ir STEP`
    Ir(Option<String>),
    /// `:mem`
    Memory,
    /// `:vars`
    Variables,
    /// `:load FILE`
    Load(String),
    /// `:explain CODE`
    Explain(String),
    /// `:device`, `:device NAME`
    Device(Option<String>),
    /// `:time`: on or off
    Time,
    /// `:reset`
    Reset,
    /// `:quit`
    Quit,
}

/// Name, argument and effect of every command.
pub const COMMANDS: &[(&str, &str, &str)] = &[
    ("help", "[NAME]", "this list, or the documentation of a name"),
    ("type", "EXPR", "the type and shape of an expression, without running it"),
    ("vars", "", "the names that are bound, and their values"),
    ("plan", "[STEP]", "the memory of the steps planned so far"),
    ("mem", "", "what is alive between steps, and who holds it"),
    ("ir", "[STEP]", "the intermediate representation of a step"),
    ("load", "FILE", "run a program in this session"),
    ("explain", "CODE", "the page on a diagnostic"),
    ("device", "[DEVICE]", "where steps run: `cpu`, `cuda`, `cuda:N` or `auto`"),
    ("time", "", "switch the display of run times on or off"),
    ("reset", "", "forget everything"),
    ("quit", "", "leave; so does Ctrl-D"),
];

/// Reads `:name argument`; the text has a `:` in front. Errors are whole messages.
pub fn parse(line: &str) -> Result<Command, String> {
    let line = line.trim().trim_start_matches(':').trim_start();
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let argument = argument.trim();
    let optional = || (!argument.is_empty()).then(|| argument.to_owned());
    let required = |what: &str| match argument {
        "" => Err(format!("`:{name}` needs {what}")),
        text => Ok(text.to_owned()),
    };
    let none = |command: Command| match argument {
        "" => Ok(command),
        _ => Err(format!("`:{name}` takes no argument")),
    };
    match expand(name)? {
        "help" => Ok(Command::Help(optional())),
        "type" => Ok(Command::Type(required("an expression")?)),
        "device" => Ok(Command::Device(optional())),
        "plan" => Ok(Command::Plan(optional())),
        "ir" => Ok(Command::Ir(optional())),
        "load" => Ok(Command::Load(required("a file")?)),
        "explain" => Ok(Command::Explain(required("a code")?)),
        "mem" => none(Command::Memory),
        "vars" => none(Command::Variables),
        "time" => none(Command::Time),
        "reset" => none(Command::Reset),
        _ => none(Command::Quit),
    }
}

/// What somebody who wants to leave, or is lost, writes first. `exit` is `:quit` here.
pub fn without_colon(line: &str) -> Option<&'static str> {
    match line.trim().trim_end_matches("()") {
        "quit" | "exit" => Some("quit"),
        "help" => Some("help"),
        _ => None,
    }
}

/// A command by its name, or by any beginning that only one has (`:q`, `:exp`).
fn expand(name: &str) -> Result<&'static str, String> {
    let matching: Vec<&'static str> =
        COMMANDS.iter().map(|(n, _, _)| *n).filter(|n| !name.is_empty() && n.starts_with(name)).collect();
    match matching.as_slice() {
        [one] => Ok(one),
        [] => {
            let shown = crate::report::visible::line(name, 40);
            Err(format!("there is no command `:{shown}`; `:help` lists all"))
        }
        many => {
            let list: Vec<String> = many.iter().map(|n| format!("`:{n}`")).collect();
            Err(format!("`:{name}` may be {}", list.join(" or ")))
        }
    }
}

/// What `:help` prints.
pub fn help() -> String {
    let mut text = String::from(
        "Type statements and expressions. The value of an expression is printed and kept as `ans`;\n\
         `;` at the end keeps it quiet. Definitions replace older ones of the same name.\n\n",
    );
    for (name, argument, effect) in COMMANDS {
        let head = format!(":{name} {argument}");
        text.push_str(&format!("  {head:<16} {effect}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_arguments_and_beginnings() {
        assert_eq!(parse(":plan"), Ok(Command::Plan(None)));
        assert_eq!(parse(" :plan  train "), Ok(Command::Plan(Some("train".into()))));
        assert_eq!(parse(":t x + 1"), Err("`:t` may be `:type` or `:time`".into()));
        assert_eq!(parse(":ty x + 1"), Ok(Command::Type("x + 1".into())));
        assert_eq!(parse(":q"), Ok(Command::Quit));
        assert_eq!(parse(":load"), Err("`:load` needs a file".into()));
        assert_eq!(parse(":mem x"), Err("`:mem` takes no argument".into()));
        assert_eq!(parse(":nope"), Err("there is no command `:nope`; `:help` lists all".into()));
        assert_eq!(parse(":"), Err("there is no command `:`; `:help` lists all".into()));
        assert!(COMMANDS.iter().all(|(name, _, _)| expand(name) == Ok(name)));
        assert!(COMMANDS.iter().all(|(name, _, _)| help().contains(&format!(":{name}"))));
    }
}
