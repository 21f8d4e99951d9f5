//! Programs on several ranks.

use std::{thread, time::Duration};

use tg::{Engine, Error, Program, Session, Source, Tensor};

/// More than any test needs, and less than anybody waits for.
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn compile(world: u32, text: &str) -> Program {
    try_compile(world, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub fn try_compile(world: u32, text: &str) -> Result<Program, Error> {
    Engine::new().with_world(world).with_rank_limit(LIMIT).compile(Source::text("ranks.tg", text))
}

/// What `work` gives on every rank of a program, each on a thread of its own.
pub fn on_ranks<T: Send>(program: &Program, work: impl Fn(&mut Session, u32) -> T + Sync) -> Vec<T> {
    let sessions = program.sessions().expect("the ranks start");
    thread::scope(|scope| {
        let work = &work;
        let start = |mut session: Session| {
            scope.spawn(move || {
                let rank = session.rank();
                work(&mut session, rank)
            })
        };
        let handles: Vec<_> = sessions.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join().expect("the rank ends")).collect()
    })
}

/// The messages of an error, one a line.
pub fn messages(error: &Error) -> String {
    let lines: Vec<&str> =
        error.diagnostics().iter().filter(|d| d.is_error()).map(|d| d.message.as_str()).collect();
    lines.join("\n")
}

/// The error of a rank that must have one.
pub fn failed<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("the rank has no error"),
        Err(error) => error,
    }
}

pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.ty().elements()).map(|k| tensor.get_f64(k).expect("an element")).collect()
}

/// Values that look random, the same for the same `salt`.
pub fn noise(salt: usize, len: usize) -> Vec<f64> {
    (0..len).map(|k| ((salt * 131 + k * 17) as f64 * 0.37).sin()).collect()
}

/// Rows of `width` values, as a tensor.
pub fn rows(values: &[f64], dtype: &str, width: usize) -> tg::Value {
    let shape = [values.len() / width, width];
    let tensor = match dtype {
        "f64" => Tensor::try_from_slice(&shape, values),
        "f32" => Tensor::try_from_slice(&shape, &values.iter().map(|&x| x as f32).collect::<Vec<f32>>()),
        "i32" => Tensor::try_from_slice(&shape, &values.iter().map(|&x| x as i32).collect::<Vec<i32>>()),
        other => panic!("rows of {other}"),
    };
    tensor.expect("the rows fit").into()
}

/// The loss that a call of `train` gives.
pub fn loss(session: &mut Session, args: &[tg::Value]) -> f64 {
    let loss = session.call("train", args).unwrap_or_else(|error| panic!("{error}"));
    loss.as_f64().expect("a loss")
}

/// The parameters of `net` with their names.
pub fn parameters(session: &mut Session) -> Vec<(String, Vec<f64>)> {
    let parameters = session.parameters("net").unwrap_or_else(|error| panic!("{error}"));
    let values = parameters.iter().map(|p| {
        let value = session.get(&p.name).unwrap_or_else(|error| panic!("{error}"));
        (p.name.to_string(), numbers(value.as_tensor().expect("a tensor")))
    });
    values.collect()
}

/// All their values.
pub fn flat(parameters: &[(String, Vec<f64>)]) -> Vec<f64> {
    parameters.iter().flat_map(|(_, values)| values.iter().copied()).collect()
}

/// ‖a − b‖ / ‖b‖
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    let norm: f64 = b.iter().map(|y| y * y).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}
