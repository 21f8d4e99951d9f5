//! `tg`: a small language for neural-network training graphs, with a memory-ordered schedule.
//!
//! A host makes an [`Engine`], compiles a [`Source`] into a [`Program`], asks it for its plans, and
//! calls its steps in a [`Session`]:
//!
//! ```
//! use tg::{Engine, Source, Tensor};
//!
//! let text = "
//! use nn
//! use optim
//! let net = nn.Linear(2, 1)
//! step train(x: f32[4, 2], weight: f32) {
//!   let loss = mean(square(net(x) - 1.0)) * weight
//!   minimize loss over net with optim.sgd(lr: 0.1)
//!   return loss
//! }";
//! let program = Engine::new().compile(Source::text("train.tg", text))?;
//! assert!(program.plan("train")?.peak_bytes() >= program.plan("train")?.lower_bound_bytes());
//!
//! let mut session = program.session()?;
//! let x = Tensor::try_from_slice(&[4, 2], &[0.5f32; 8])?;
//! let first: f64 = session.call("train", &[(&x).into(), 1.0.into()])?.try_into()?;
//! let second: f64 = session.call("train", &[x.into(), 1.0.into()])?.try_into()?;
//! assert!(second < first);
//! assert_eq!(session.parameters("net")?.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a program is refused for is an [`Error`] with all diagnostics; work is stopped with a
//! [`CancelToken`]. [`engine`] has the rest of the face: [`engine::Value`], [`engine::HostOp`],
//! [`engine::HostFunction`]. `docs/embedding.md` is the guide, `examples/embed.rs` a whole program.
//!
//! [`plan`], [`schedule`], [`ir`] and [`ops`] are the data that plans are made of, for hosts that
//! look into them; [`report`] renders plans and diagnostics. The other modules are the phases of the
//! compiler and the command, described in `ARCHITECTURE.md`: they are public for the tests, and
//! change without notice.

pub mod budget;
#[doc(hidden)]
pub mod check;
#[doc(hidden)]
pub mod cli;
pub mod codes;
pub mod diagnose;
pub mod diagnostic;
pub mod edits;
pub mod engine;
pub mod exec;
#[doc(hidden)]
pub mod grad;
#[doc(hidden)]
pub mod guard;
pub mod ir;
#[doc(hidden)]
pub mod lower;
pub mod ops;
pub mod plan;
#[doc(hidden)]
pub mod repl;
pub mod report;
pub mod schedule;
#[doc(hidden)]
pub mod script;
pub mod source;
#[doc(hidden)]
pub mod syntax;
#[doc(hidden)]
pub mod terminal;

pub use diagnostic::Error;
pub use engine::{CompileOptions, Device, Engine, Limits, Program, Session, Source, Value};
pub use exec::Tensor;
pub use guard::CancelToken;
