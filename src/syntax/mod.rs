//! Text to tree: lexer, layout pass, grammar, syntax errors.

pub mod ast;
