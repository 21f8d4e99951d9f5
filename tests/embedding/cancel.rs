//! Stopping each phase from another thread.

use std::time::{Duration, Instant};

use tg::{CancelToken, CompileOptions, Engine, Source, engine::Planning};

use super::support::{TRAIN, first, ones, session};

/// How soon after the wish to stop the call has to end; generous, as tests share a machine.
const SOON: Duration = Duration::from_secs(10);

/// Calls `cancel` after a moment, unless the work is over by then.
fn later(token: &CancelToken, after: Duration) -> std::thread::JoinHandle<Instant> {
    let token = token.clone();
    std::thread::spawn(move || {
        std::thread::sleep(after);
        token.cancel();
        Instant::now()
    })
}

/// Compiles a program that takes far longer than the wait, and stops it.
fn stop_compiling(text: &str, planning: Planning) {
    let options = CompileOptions { planning, ..CompileOptions::default() };
    let stopper = later(&options.cancel, Duration::from_millis(100));
    let result = Engine::new().compile_with(Source::text("long.tg", text), &options);
    let ended = Instant::now();
    let wished = stopper.join().expect("the other thread");
    let error = result.expect_err("it is stopped");
    assert_eq!(first(&error), "TG0405 the compilation was stopped");
    assert_eq!(error.diagnostics().len(), 1);
    assert!(ended.saturating_duration_since(wished) < SOON);
}

#[test]
fn checking_stops() {
    // Nested comprehensions that are followed pass by pass.
    let text = "fn f(n) { let s = 0\n for i in 0..1000 { for j in 0..1000 { for k in 0..1000 { s = s + k } } }\n return s }\nstep g(x: f32[2]) { return x * f(3) }";
    stop_compiling(text, Planning::Nothing);
}

#[test]
fn elaboration_and_gradients_stop() {
    let text = "step g(x: f32[2]) { let y = x\n for i in 0..2000 { for j in 0..1000 { y = sin(y) + x } }\n return grad(sum(y), x) }";
    stop_compiling(text, Planning::Nothing);
}

#[test]
fn lowering_and_search_stop() {
    // Many values that cross: the search for an order has a lot to do, and the bound too.
    let text = "step g(x: f32[64, 64]) {
        let hs = [x]
        for i in 0..3000 { hs = hs + [tanh(hs[len(hs) - 1] @ x + hs[(i * 7919) % len(hs)])] }
        let total = x
        for i in 0..3000 { total = total + hs[(i * 104729) % len(hs)] @ hs[i] }
        return grad(sum(total), x) }";
    stop_compiling(text, Planning::Proved);
}

#[test]
fn the_search_for_what_to_recompute_stops() {
    // A long chain has many candidates, and none of them fits.
    let text = "step g(x: f32[64, 64]) {
        budget 64 KiB
        let y = x
        for i in 0..3000 { y = tanh(y @ x) }
        return grad(sum(y), x) }";
    stop_compiling(text, Planning::Quick);
}

#[test]
fn a_token_that_is_set_stops_at_once() {
    let options = CompileOptions::default();
    options.cancel.cancel();
    let error = Engine::new().compile_with(Source::text("p.tg", TRAIN), &options).expect_err("stopped");
    assert_eq!(first(&error), "TG0405 the compilation was stopped");
    options.cancel.reset();
    Engine::new().compile_with(Source::text("p.tg", TRAIN), &options).expect("a sound program");
}

#[test]
fn runs_stop_and_the_session_goes_on() {
    let mut session = session(&format!(
        "{TRAIN}\nfn spin(n) {{ let x = 0\n for i in 0..n {{ x = x + 1 }}\n return x }}\nfn train_on(n) {{ for i in 0..n {{ print(i) }} }}"
    ));
    let args = [ones(&[4, 2]).into(), 1.0.into()];
    let before = session.call("train", &args).expect("it runs").as_f64();
    let stopper = later(&session.cancel_token(), Duration::from_millis(50));
    let error = session.eval("for i in 0..1000000000 { train(ones([4, 2]), 1.0) }").expect_err("stopped");
    stopper.join().expect("the other thread");
    assert_eq!(first(&error), "TG0405 the run was stopped");
    let stopper = later(&session.cancel_token(), Duration::from_millis(50));
    let error = session.eval("let n = 0\nfor i in 0..100000000000 { n += 1 }").expect_err("stopped");
    stopper.join().expect("the other thread");
    assert_eq!(first(&error), "TG0405 the run was stopped");
    let after = session.call("train", &args).expect("it goes on").as_f64();
    assert!(after < before, "the updates that were made are there");
}

#[test]
fn worst_orders_and_offsets_stop() {
    use tg::{
        guard::{Guard, within},
        schedule::{self, BufferFlags, GraphBuilder},
    };
    let mut builder = GraphBuilder::new();
    let flags = BufferFlags::default();
    let mut last: Vec<schedule::BufferId> = Vec::new();
    for k in 0..2000u64 {
        let made = builder.buffer(1000 + (k * 7919) % 5000, flags);
        let reads: Vec<schedule::BufferId> = [k.checked_sub(1), (k * 104_729).checked_rem(k.max(1))]
            .iter()
            .flatten()
            .filter_map(|&r| last.get(r as usize).copied())
            .collect();
        builder.op(&reads, &[made], &[], &[], 0);
        last.push(made);
    }
    let graph = builder.finish();
    let guard = Guard::default();
    guard.cancel.cancel();
    let started = Instant::now();
    within(&guard, || {
        let schedule = schedule::schedule(&graph, &schedule::Options::default());
        assert_eq!(schedule.order.len(), 2000, "what is there is legal");
        let worst = schedule::worst_order(&graph, &schedule::WorstOptions::default());
        assert!(worst.witness_bytes <= worst.bytes);
    });
    assert!(started.elapsed() < SOON);
}
