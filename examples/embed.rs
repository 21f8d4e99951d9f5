//! A Rust program that trains a network of a `.tg` program: `cargo run --example embed`.
//!
//! It brings a function and an op of its own, calls the training step with its own data, reads and
//! writes parameters, saves and loads them, and stops a run from another thread.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use tg::{
    Engine, Source, Tensor,
    engine::{HostOp, Limits, Value},
};

const PROGRAM: &str = r#"
use nn
use optim

# `soft_sign` is an op of the host; this is its gradient, in the language itself.
fn soft_sign_grad(x, y, dy) = dy / square(1.0 + abs(x))

model Net() {
  let hidden = nn.Linear(2, 16)
  let out = nn.Linear(16, 1)
  fn forward(x) = out(soft_sign(hidden(x)))
}
let net = Net()
let opt = optim.adam(lr: 0.02)

step train(x: f32[64, 2], target: f32[64, 1]) {
  let loss = mean(square(checkpoint < net(x) > - target))
  minimize loss over net with opt
  return loss
}

step predict(x: f32[N, 2]) { return net(x) }

fn plus_one(n) = n + 1
let epoch = 0
let current = 0.0
"#;

fn main() -> Result<(), Box<dyn Error>> {
    // An op: its shape rule, its CPU kernel, its gradient.
    let soft_sign = HostOp::new(
        "soft_sign",
        |types| match types {
            [x] => Ok(vec![x.clone()]),
            _ => Err(format!("takes one tensor, got {}", types.len())),
        },
        |args, results| {
            let (Some(x), Some(y)) = (args[0].as_slice::<f32>(), results[0].as_mut_slice::<f32>()) else {
                return Err("only for f32".into());
            };
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + x.abs()));
            Ok(())
        },
    )
    .with_gradient_function("soft_sign_grad");

    let engine = Engine::new()
        .with_seed(7)
        .with_limits(Limits { max_host_bytes: 256 << 20, ..Limits::default() })
        .with_op(soft_sign)
        // A function that script code calls.
        .with_function("log_line", |args| {
            println!("{}", args.first().and_then(Value::as_str).ok_or("takes a text")?);
            Ok(Value::Unit)
        });

    let program = engine.compile(Source::text("embed.tg", PROGRAM))?;
    let plan = program.plan("train")?;
    println!("the step needs {} bytes, no order less than {}", plan.peak_bytes(), plan.lower_bound_bytes());

    // Points in the unit square; the target is 1 above the diagonal, 0 below.
    let points: Vec<f32> = (0..128).map(|k| (k * 37 % 64) as f32 / 64.0).collect();
    let above: Vec<f32> =
        points.chunks(2).map(|p| if let [a, b] = p { f32::from(u8::from(b > a)) } else { 0.0 }).collect();
    let x = Tensor::try_from_slice(&[64, 2], &points)?;
    let target = Tensor::try_from_slice(&[64, 1], &above)?;

    let mut session = program.session()?;
    let mut first = None;
    let mut loss = f64::NAN;
    for epoch in 0..200 {
        loss = session.call("train", &[(&x).into(), (&target).into()])?.try_into()?;
        first.get_or_insert(loss);
        if epoch % 50 == 0 {
            session.set("epoch", epoch)?;
            session.set("current", loss)?;
            session.eval("log_line(\"epoch {epoch}: loss {current:.4}\")")?;
        }
    }
    if first.is_some_and(|first| loss > first / 2.0) {
        return Err(format!("the loss fell from {first:?} to {loss} only").into());
    }

    // Parameters by name.
    for parameter in session.parameters("net")? {
        println!("{}: {}", parameter.name, parameter.ty);
    }
    let file = std::env::temp_dir().join(format!("embed-{}.safetensors", std::process::id()));
    session.save(&file)?;
    let weights = session.get("net.out.w")?;
    session.set("net.out.w", Tensor::try_from_slice(&[1, 16], &[0.0f32; 16])?)?;
    session.load(&file)?;
    std::fs::remove_file(&file)?;
    assert_eq!(session.get("net.out.w")?, weights);
    let y: Tensor =
        session.call("predict", &[Tensor::try_from_slice(&[1, 2], &[0.1f32, 0.9])?.into()])?.try_into()?;
    println!("above the diagonal: {:.2}", y.get_f64(0).unwrap_or(f64::NAN));

    // What a call costs beside the work of a small step.
    let point: Value = Tensor::try_from_slice(&[1, 2], &[0.1f32, 0.9])?.into();
    let arguments = [point];
    let calls = 2000;
    let started = Instant::now();
    for _ in 0..calls {
        session.call("predict", &arguments)?;
    }
    println!("a call takes {:.1} µs", started.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    let started = Instant::now();
    for _ in 0..200 {
        session.call("plus_one", &[1.into()])?;
    }
    println!("one on a stack of its own {:.1} µs", started.elapsed().as_secs_f64() * 1e6 / 200.0);

    // A run that another thread stops. The session goes on.
    let token = session.cancel_token();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        token.cancel();
    });
    let stopped = session.eval("let n = 0\nfor i in 0..1000000000000 { n += 1 }");
    println!("{}", stopped.err().map_or_else(|| "it ended".into(), |error| error.to_string()));
    stopper.join().map_err(|_| "the other thread failed")?;
    println!("{} bytes in use, {} at most", session.host_bytes(), session.most_host_bytes());
    Ok(())
}
