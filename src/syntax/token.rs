//! The tokens, as `logos` finds them in the text and as the grammar reads them.

use logos::Logos;

/// A token with the bytes it covers.
pub(crate) type Spanned<'s> = (u32, Token<'s>, u32);

/// One token. The grammar knows all but the last group of `logos` tokens, which the lexer turns
/// into others; the layout pass makes those that depend on what stands around them.
#[derive(Logos, Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[logos(skip r"[ \t\x0b\x0c]+")]
pub(crate) enum Token<'s> {
    #[regex(r"[\p{XID_Start}_]\p{XID_Continue}*", priority = 2)]
    Name(&'s str),
    #[regex(r"[0-9][0-9_]*(\.[0-9][0-9_]*)?([eE][+-]?[0-9][0-9_]*)?", priority = 20)]
    Number(&'s str),
    #[regex(r"[0-9][0-9_]*(\.[0-9][0-9_]*)?[ \t]*(kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", priority = 30)]
    Size(&'s str),
    /// With its quotes.
    #[regex(r#""([^"\\\r\n]|\\[^\r\n])*""#)]
    Str(&'s str),

    // Reserved words.
    #[token("and")]
    And,
    #[token("barrier")]
    Barrier,
    #[token("checkpoint")]
    Checkpoint,
    #[token("const")]
    Const,
    #[token("else")]
    Else,
    #[token("false")]
    False,
    #[token("fn")]
    Fn,
    #[token("for")]
    For,
    #[token("if")]
    If,
    #[token("in")]
    In,
    #[token("let")]
    Let,
    #[token("model")]
    Model,
    #[token("not")]
    Not,
    #[token("or")]
    Or,
    #[token("return")]
    Return,
    #[token("step")]
    Step,
    #[token("true")]
    True,
    #[token("use")]
    Use,

    // Contextual words: names until the layout pass sees that their statement fits.
    Allow,
    As,
    Budget,
    By,
    Ensure,
    Flat,
    Frozen,
    Hook,
    Minimize,
    Optimizer,
    Over,
    Param,
    Release,
    Shard,
    State,
    Sync,
    Update,
    With,

    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    #[token("*")]
    Star,
    #[token("/")]
    Slash,
    #[token("//")]
    SlashSlash,
    #[token("%")]
    Percent,
    #[token("**")]
    StarStar,
    #[token("@")]
    At,
    #[token("==")]
    EqualEqual,
    #[token("!=")]
    NotEqual,
    #[token("<")]
    Less,
    #[token("<=")]
    LessEqual,
    #[token(">")]
    Greater,
    #[token(">=")]
    GreaterEqual,
    #[token("=")]
    Equal,
    #[token("+=")]
    PlusEqual,
    #[token("-=")]
    MinusEqual,
    #[token("*=")]
    StarEqual,
    #[token("/=")]
    SlashEqual,
    #[token("//=")]
    SlashSlashEqual,
    #[token("%=")]
    PercentEqual,
    #[token("**=")]
    StarStarEqual,
    #[token("@=")]
    AtEqual,
    #[token(":=")]
    ColonEqual,
    #[token(":")]
    Colon,
    #[token(",")]
    Comma,
    #[token(".")]
    Dot,
    #[token("..")]
    DotDot,
    #[token("...")]
    Ellipsis,
    #[token("->")]
    Arrow,
    #[token("(")]
    OpenParen,
    #[token(")")]
    CloseParen,
    #[token("[")]
    OpenBracket,
    #[token("]")]
    CloseBracket,
    #[token("{")]
    OpenBrace,
    #[token("}")]
    CloseBrace,

    /// The `<` of `checkpoint <`.
    OpenRegion,
    /// The `>` that ends a region.
    CloseRegion,
    /// One or more `;` and newlines between two statements.
    Separator,
    /// An operand that was left out because it is nested too deep; already reported.
    Invalid,

    // Found by `logos`, never seen by the grammar.
    #[token(";")]
    Semicolon,
    #[regex(r"\r\n|\n|\r")]
    Newline,
    #[regex(r"#[^\r\n]*", allow_greedy = true)]
    Comment(&'s str),
    #[regex(r"[0-9][0-9_]*(\.[0-9][0-9_]*)?\p{XID_Start}\p{XID_Continue}*", priority = 10)]
    BadNumber(&'s str),
    #[regex(r#""([^"\\\r\n]|\\[^\r\n])*\\?"#)]
    OpenStr(&'s str),
    #[regex(r"'[^'\r\n]*'")]
    QuotedStr(&'s str),
    #[token("&&")]
    AmpAmp,
    #[token("||")]
    BarBar,
    #[token("!")]
    Bang,
}

impl<'s> Token<'s> {
    /// A reserved word's text; where it stands as a label or a field, it is a name.
    pub(crate) fn word(self) -> Option<&'static str> {
        Some(match self {
            Token::And => "and",
            Token::Barrier => "barrier",
            Token::Checkpoint => "checkpoint",
            Token::Const => "const",
            Token::Else => "else",
            Token::False => "false",
            Token::Fn => "fn",
            Token::For => "for",
            Token::If => "if",
            Token::In => "in",
            Token::Let => "let",
            Token::Model => "model",
            Token::Not => "not",
            Token::Or => "or",
            Token::Return => "return",
            Token::Step => "step",
            Token::True => "true",
            Token::Use => "use",
            _ => return None,
        })
    }

    /// At the start of a line these end every bracket left open above.
    pub(crate) fn starts_statement(self) -> bool {
        matches!(self, Token::Let | Token::Fn | Token::Model | Token::Step | Token::Use | Token::Return)
    }

    /// An operator that needs something after it: a newline there does not end the statement.
    pub(crate) fn continues_line(self) -> bool {
        self.is_infix()
            || self.is_assignment()
            || matches!(
                self,
                Token::Not | Token::In | Token::Comma | Token::Arrow | Token::By | Token::Over | Token::With
            )
    }

    /// Operators between two operands.
    pub(crate) fn is_infix(self) -> bool {
        self.is_comparison()
            || matches!(
                self,
                Token::And
                    | Token::Or
                    | Token::Plus
                    | Token::Minus
                    | Token::Star
                    | Token::Slash
                    | Token::SlashSlash
                    | Token::Percent
                    | Token::StarStar
                    | Token::At
            )
    }

    pub(crate) fn is_comparison(self) -> bool {
        matches!(
            self,
            Token::EqualEqual
                | Token::NotEqual
                | Token::Less
                | Token::LessEqual
                | Token::Greater
                | Token::GreaterEqual
        )
    }

    pub(crate) fn is_assignment(self) -> bool {
        matches!(
            self,
            Token::Equal
                | Token::PlusEqual
                | Token::MinusEqual
                | Token::StarEqual
                | Token::SlashEqual
                | Token::SlashSlashEqual
                | Token::PercentEqual
                | Token::StarStarEqual
                | Token::AtEqual
                | Token::ColonEqual
        )
    }

    /// The token may be the last of an expression.
    pub(crate) fn ends_operand(self) -> bool {
        matches!(
            self,
            Token::Name(_)
                | Token::Number(_)
                | Token::Size(_)
                | Token::Str(_)
                | Token::True
                | Token::False
                | Token::CloseParen
                | Token::CloseBracket
                | Token::CloseBrace
                | Token::CloseRegion
                | Token::Invalid
        )
    }

    /// The token can only be the first of an expression, never continue one.
    pub(crate) fn starts_operand(self) -> bool {
        matches!(
            self,
            Token::Name(_)
                | Token::Number(_)
                | Token::Size(_)
                | Token::Str(_)
                | Token::True
                | Token::False
                | Token::Checkpoint
                | Token::Barrier
        )
    }
}
