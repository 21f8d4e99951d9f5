//! Short forms for the tests of the library.

use tg::{
    Engine, Error, Session, Source, Tensor,
    engine::{Limits, Program},
};

/// A small network that trains, with a run-time scalar for its learning rate.
pub const TRAIN: &str = r#"
use nn
use optim
let net = nn.Linear(2, 1)
let scale = 1.0
step train(x: f32[4, 2], rate: f32) {
  let loss = mean(square(net(x) - 1.0)) * scale
  minimize loss over net with optim.sgd(lr: 0.1)
  return loss * rate
}
"#;

pub fn compile(text: &str) -> Program {
    Engine::new().compile(Source::text("p.tg", text)).unwrap_or_else(|e| panic!("{e:#?}"))
}

pub fn session(text: &str) -> Session {
    compile(text).session().unwrap_or_else(|e| panic!("{e:#?}"))
}

pub fn limited(limits: Limits, text: &str) -> Result<Session, Error> {
    Engine::new().with_limits(limits).compile(Source::text("p.tg", text))?.session()
}

pub fn ones(shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    Tensor::from_slice(shape, &vec![1.0f32; count]).expect("memory")
}

/// Code and message of the first error.
pub fn first(error: &Error) -> String {
    error.diagnostics().first().map(|d| format!("{} {}", d.code.0, d.message)).unwrap_or_default()
}
