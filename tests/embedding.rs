//! The library in the hands of a Rust host: values, parameters, functions and ops of its own,
//! cancellation, limits.

mod embedding {
    mod calls;
    mod cancel;
    mod errors;
    mod host;
    mod limits;
    mod parameters;
    mod support;
}
