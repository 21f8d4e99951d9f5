//! The codes of syntax errors.

use crate::diagnostic::Code;

pub const UNEXPECTED: Code = Code("TG0101");
pub const UNCLOSED: Code = Code("TG0102");
pub const UNMATCHED: Code = Code("TG0103");
pub const UNKNOWN_CHARACTER: Code = Code("TG0104");
pub const UNTERMINATED_STRING: Code = Code("TG0105");
pub const BAD_NUMBER: Code = Code("TG0106");
pub const BAD_ESCAPE: Code = Code("TG0107");
pub const TOO_DEEP: Code = Code("TG0108");
pub const COMPARISON_IN_REGION: Code = Code("TG0109");
pub const CHAINED_COMPARISON: Code = Code("TG0110");
pub const FOREIGN: Code = Code("TG0111");
pub const BAD_HOLE: Code = Code("TG0112");
pub const BAD_TARGET: Code = Code("TG0113");
pub const MISPLACED: Code = Code("TG0114");
pub const TOO_LARGE: Code = Code("TG0115");

/// Every syntax code with its title, ascending.
pub const ALL: &[(Code, &str)] = &[
    (UNEXPECTED, "a word or sign that does not fit here"),
    (UNCLOSED, "a bracket or region that is not closed"),
    (UNMATCHED, "a closing bracket that nothing opened"),
    (UNKNOWN_CHARACTER, "a character that has no meaning"),
    (UNTERMINATED_STRING, "a string that does not end on its line"),
    (BAD_NUMBER, "a number that is malformed or too large"),
    (BAD_ESCAPE, "an escape that strings do not have"),
    (TOO_DEEP, "expressions or blocks nested too deep"),
    (COMPARISON_IN_REGION, "a comparison directly inside `checkpoint < … >`"),
    (CHAINED_COMPARISON, "a comparison of a comparison"),
    (FOREIGN, "a word or sign of another language"),
    (BAD_HOLE, "a malformed `{ }` in a string"),
    (BAD_TARGET, "an assignment to something that is not a place"),
    (MISPLACED, "a declaration that does not belong here"),
    (TOO_LARGE, "a text that is too large"),
];
