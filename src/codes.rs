//! The codes of all diagnostics, one line each. `tg explain` shows the titles.

use crate::diagnostic::Code;

macro_rules! codes {
    ($($(#[$group:meta])* $name:ident = $code:literal, $title:literal;)*) => {
        $(#[doc = $title] pub const $name: Code = Code($code);)*

        /// Every code with its title, ascending.
        pub const ALL: &[(Code, &str)] = &[$(($name, $title)),*];
    };
}

codes! {
    // Syntax.
    UNEXPECTED = "TG0101", "a word or sign that does not fit here";
    UNCLOSED = "TG0102", "a bracket or region that is not closed";
    UNMATCHED = "TG0103", "a closing bracket that nothing opened";
    UNKNOWN_CHARACTER = "TG0104", "a character that has no meaning";
    UNTERMINATED_STRING = "TG0105", "a string that does not end on its line";
    BAD_NUMBER = "TG0106", "a number that is malformed or too large";
    BAD_ESCAPE = "TG0107", "an escape that strings do not have";
    NESTED_TOO_DEEP = "TG0108", "expressions or blocks nested too deep";
    COMPARISON_IN_REGION = "TG0109", "a comparison directly inside `checkpoint < … >`";
    CHAINED_COMPARISON = "TG0110", "a comparison of a comparison";
    FOREIGN = "TG0111", "a word or sign of another language";
    BAD_HOLE = "TG0112", "a malformed `{ }` in a string";
    BAD_TARGET = "TG0113", "an assignment to something that is not a place";
    MISPLACED = "TG0114", "a declaration that does not belong here";
    TOO_LARGE = "TG0115", "a text that is too large";

    // Names.
    UNKNOWN_NAME = "TG0201", "a name that nothing in scope defines";
    UNKNOWN_FIELD = "TG0202", "a field or method that the value does not have";
    UNKNOWN_MODULE = "TG0203", "a module that neither the library nor the script's folder has";
    REBINDS_OUTER = "TG0204", "a function, region or step assigns to a name outside of it";
    USE_CYCLE = "TG0205", "modules that use each other";
    RELEASED = "TG0206", "a value is used or held after its `release`";
    DUPLICATE_NAME = "TG0207", "a name is declared twice";
    NOT_MADE = "TG0208", "a name whose input failed";

    // Types and values.
    TYPE_MISMATCH = "TG0210", "a value of the wrong type";
    NOT_CALLABLE = "TG0211", "a value that cannot be called";
    ARGUMENTS = "TG0212", "arguments that do not fit the parameters";
    BAD_OPERANDS = "TG0213", "an operator applied to values it is not defined for";
    NOT_CONSTANT = "TG0214", "a value that must be known when the graph is built";
    BAD_INDEX = "TG0215", "an index or slice outside of its list, or of the wrong type";
    NUMBER_RANGE = "TG0216", "arithmetic on whole numbers that overflows or divides by zero";
    DIVISION_OF_INTS = "TG0217", "`/` between whole numbers";
    BAD_FORMAT = "TG0218", "a format that does not fit the value";
    UNPACK = "TG0219", "a number of names that differs from the number of values";

    // Shapes and dtypes.
    SHAPE_MISMATCH = "TG0220", "a shape or dtype that differs from the declared one";
    TENSOR_OP = "TG0221", "a tensor operation that its operands do not allow";
    DTYPE_MIX = "TG0222", "tensors of different dtypes in one operation";
    UNKNOWN_DIMENSION = "TG0223", "a size that cannot be worked out";

    // Graph code.
    NOT_IN_GRAPH = "TG0230", "a statement or function that graph code does not allow";
    ONLY_IN_STEP = "TG0231", "a statement that only a step may hold";
    GRADIENT = "TG0232", "a gradient that cannot be taken";
    BAD_OPTION = "TG0233", "an option that is not known, or a value that it does not take";
    TOO_DEEP = "TG0234", "calls or expressions nested too deep";
    LIMIT = "TG0235", "a limit of the engine is reached";
    OPTIMIZER = "TG0236", "an optimizer used in a way it is not made for";
    MODEL = "TG0237", "a model used in a way it is not made for";
    DEPENDS_ON_RANK = "TG0238", "graph code that is not the same on every rank";
    BAD_SET = "TG0239", "a `--set` that fits no constant or dimension";
    SHARD = "TG0241", "a model that cannot be spread over the ranks this way";

    // Memory: what keeps it.
    KEPT_BY_OUTPUT = "TG0301", "a value is kept to the end of the step only to be returned";
    KEPT_BY_RETURNED_VIEW = "TG0302", "a returned view keeps the whole of what it is a view of";
    KEPT_BY_VIEW = "TG0303", "a small view keeps a large value alive";
    KEPT_MASK = "TG0304", "random numbers are kept for the backward pass";
    KEPT_TWICE = "TG0305", "the input and the output of a cheap function are both kept";
    KEPT_UPCAST = "TG0306", "a wider copy is kept for the backward pass";
    KEPT_CAST = "TG0307", "a cast of parameters is kept from the forward to the backward pass";
    ALL_GRADIENTS = "TG0308", "every gradient is alive until the update";
    ALL_UPDATES = "TG0309", "a barrier that keeps one value for each parameter alive at once";
    UNTIED_RECOMPUTE = "TG0310", "a recompute that is not tied to the gradient";
    DEFERRED_GRADIENTS = "TG0311", "weight gradients that may be deferred";
    BARRIER_WITHOUT_GRADIENT = "TG0312", "a barrier that leaves out the incoming gradient";
    COPIED_UPDATE = "TG0313", "state or a value that cannot be made in place";

    // Memory: what buys nothing.
    USELESS_REGION = "TG0314", "a region that frees nothing";
    REGION_RAISES_PEAK = "TG0315", "a region that raises the peak";
    WHOLE_MODEL_REGION = "TG0316", "a region around the whole model";
    USELESS_BARRIER = "TG0317", "a barrier that orders nothing";
    USELESS_RELEASE = "TG0318", "a release without effect";
    KEPT_BY_SCRIPT = "TG0319", "a list of the script that keeps a tensor of every pass";
    STATE_IN_REGION = "TG0320", "state that is written inside a region";
    BARRIER_RAISES_PEAK = "TG0321", "a barrier that raises the peak";
    WHOLE_LOGITS = "TG0322", "the logits of a loss, alive for all rows at once";
    FOLLOWS_FROZEN = "TG0323", "state that follows what never changes";

    // Memory: flat groups, ranks and collectives.
    PADDING = "TG0330", "a flat group that is mostly padding";
    FROZEN_IN_GROUP = "TG0331", "a frozen parameter in the flat group of trained ones";
    MIXED_DTYPES = "TG0332", "parameters of different dtypes in one flat group";
    BUCKET_ACROSS_COLLECTIVE = "TG0333", "a bucket that is kept across its collective";
    VIEW_OF_GATHERED = "TG0334", "a view of a gathered unit that outlives its use";
    GATHERED_AHEAD = "TG0335", "units that are gathered long before their use";
    COLLECTIVE_IN_REGION = "TG0336", "a collective inside a region, whose result is kept";
    HOOK_OVERFLOW = "TG0338", "a hook that adds in f16 what may overflow";

    // Memory: contracts.
    OVER_PEAK = "TG0340", "a step needs more memory than its `ensure peak` allows";
    NO_GRADIENT = "TG0341", "parameters that get no gradient";
    NOT_PLANNED = "TG0342", "a contract of a step that is not planned";
    OVER_PEAK_IN_SOME_ORDER = "TG0344", "a legal order needs more memory than `ensure peak … in every schedule` allows";
    OVER_BUDGET = "TG0347", "a `budget` that no plan fits";

    // Run time.
    ASSERTION = "TG0401", "an assertion that does not hold";
    RUN_FAILED = "TG0402", "an operation that failed while it ran";
    FILE = "TG0403", "a file that cannot be read or written";
    FILE_CONTENT = "TG0404", "a file whose content does not fit";
    CANCELLED = "TG0405", "a run or a compilation that was stopped";
    RAISED = "TG0406", "an error that the script raised";
    HOST = "TG0407", "a function of the host that failed";
    OTHER_RANK = "TG0408", "another rank that failed, ended or did not come";
    RANKS_DISAGREE = "TG0409", "ranks that call different collectives";
    DEVICE = "TG0410", "a device that cannot be used";

    // Faults of `tg`.
    INTERNAL = "TG0901", "a fault of `tg` itself";
}

/// The title of a code.
pub fn title(code: Code) -> Option<&'static str> {
    ALL.iter().find(|(c, _)| *c == code).map(|(_, title)| *title)
}
