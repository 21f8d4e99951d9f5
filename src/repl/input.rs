//! Lines from a terminal or a pipe.

use std::io::{self, BufRead, IsTerminal, Read};

use rustyline::error::ReadlineError;

/// What reading a line gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(String),
    /// Ctrl-C: what was typed so far is given up.
    Interrupted,
    End,
}

/// The longest line that is read from a pipe, in bytes.
const LINE_LIMIT: u64 = 64 << 20;

pub enum Input {
    Terminal(Box<rustyline::DefaultEditor>),
    /// Read plainly: line editing off a terminal glues lines together.
    Piped(io::BufReader<io::Stdin>),
}

impl Input {
    /// The terminal where standard input and output both are one.
    pub fn standard() -> Input {
        if io::stdin().is_terminal()
            && io::stdout().is_terminal()
            && let Ok(editor) = rustyline::DefaultEditor::new()
        {
            return Input::Terminal(Box::new(editor));
        }
        Input::Piped(io::BufReader::new(io::stdin()))
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    pub fn read(&mut self, prompt: &str) -> io::Result<Line> {
        match self {
            Input::Terminal(editor) => match editor.readline(prompt) {
                Ok(text) => Ok(Line::Text(text)),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Io(error)) => Err(error),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
            Input::Piped(reader) => read_line(reader),
        }
    }

    /// Remembers a whole input for the arrow keys.
    pub fn remember(&mut self, text: &str) {
        if let Input::Terminal(editor) = self {
            // Fails only for histories in files.
            let _ = editor.add_history_entry(text.trim_end());
        }
    }
}

/// A line without its end. Bytes that are not UTF-8 become replacement characters, which the lexer
/// reports where they stand.
fn read_line(reader: &mut impl BufRead) -> io::Result<Line> {
    let mut bytes = Vec::new();
    reader.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(Line::End);
    }
    while matches!(bytes.last(), Some(b'\n' | b'\r')) {
        bytes.pop();
    }
    Ok(Line::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_from_a_pipe() {
        let mut reader = io::Cursor::new(b"let x = 1\r\n\nlast \xff".to_vec());
        assert_eq!(read_line(&mut reader).unwrap(), Line::Text("let x = 1".into()));
        assert_eq!(read_line(&mut reader).unwrap(), Line::Text(String::new()));
        assert_eq!(read_line(&mut reader).unwrap(), Line::Text("last \u{fffd}".into()));
        assert_eq!(read_line(&mut reader).unwrap(), Line::End);
    }
}
