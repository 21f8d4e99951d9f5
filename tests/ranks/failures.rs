//! What goes wrong between ranks is an error on every rank, with a number, and never a hang.

use std::{
    thread,
    time::{Duration, Instant},
};

use tg::{Engine, Session, Source, Tensor, exec::comm::FailureKind};

use super::support::{compile, failed, messages, on_ranks, try_compile};

const TWO_STEPS: &str = "step f(x: f32[4]) {
  return all_reduce(x)
}
step g(x: f32[8]) {
  return all_gather(x)
}
step h(x: f32[4]) {
  return all_gather(x)
}
step late(x: f32[4]) {
  return all_reduce(x)
}
";

fn ones(n: usize) -> tg::Value {
    Tensor::try_from_slice(&[n], &vec![1.0f32; n]).expect("ones").into()
}

#[test]
fn ranks_that_disagree_name_both() {
    let expected = [
        (
            "f",
            "g",
            8,
            "rank 0 calls `all_reduce` of f32[4] (ranks.tg:2), rank 1 calls `all_gather` of f32[8] (ranks.tg:5)",
        ),
        (
            "f",
            "h",
            4,
            "rank 0 calls `all_reduce` of f32[4] (ranks.tg:2), rank 1 calls `all_gather` of f32[4] (ranks.tg:8)",
        ),
        (
            "f",
            "late",
            4,
            "rank 0 calls `all_reduce` of f32[4] (ranks.tg:2), rank 1 calls `all_reduce` of f32[4] (ranks.tg:11)",
        ),
    ];
    for (here, there, n, what) in expected {
        let program = compile(3, TWO_STEPS);
        let errors = on_ranks(&program, |session, rank| {
            let result = match rank {
                1 => session.call(there, &[ones(n)]),
                _ => session.call(here, &[ones(4)]),
            };
            (failed(result), session.rank_failure())
        });
        for (rank, (error, failure)) in errors.iter().enumerate() {
            assert_eq!(messages(error), format!("ranks 0 and 1 disagree: {what}"));
            assert_eq!(error.diagnostics()[0].code, tg::codes::RANKS_DISAGREE);
            assert!(error.diagnostics()[0].notes.contains(&format!("on rank {rank}")));
            assert_eq!(failure.as_ref().map(|f| (f.kind, f.rank)), Some((FailureKind::Disagrees, 1)));
        }
    }
}

/// One step whose input has another shape on one rank is compiled again there.
#[test]
fn shapes_that_differ_between_ranks() {
    let program = compile(2, "step f(x: f32[N]) { return all_reduce(x) }\nf(ones([3]))");
    let errors = on_ranks(&program, |session, rank| failed(session.call("f", &[ones(3 + rank as usize)])));
    for error in errors {
        let text = "ranks 0 and 1 disagree: rank 0 calls `all_reduce` of f32[3] (ranks.tg:1), \
                    rank 1 calls `all_reduce` of f32[4] (ranks.tg:1)";
        assert_eq!(messages(&error), text);
    }
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let text = format!("{TWO_STEPS}f(ones([4]))\nassert(rank != 2, \"two is bad\")\nf(ones([4]))");
    let program = compile(4, &text);
    let begin = Instant::now();
    let errors = on_ranks(&program, |session, _| failed(session.run()));
    assert!(begin.elapsed() < Duration::from_secs(10));
    for (rank, error) in errors.iter().enumerate() {
        let (message, code) = match rank {
            2 => ("two is bad", tg::codes::ASSERTION),
            _ => ("rank 2 failed: two is bad", tg::codes::OTHER_RANK),
        };
        assert_eq!((messages(error).as_str(), error.diagnostics()[0].code), (message, code));
    }
}

/// An operation that fails while its step runs, before its collective.
#[test]
fn a_step_that_fails_ends_the_others() {
    let text = "step f(x: f32[4], ids: i32[2]) { return all_reduce(gather(x, ids)) }";
    let program = compile(2, text);
    let errors = on_ranks(&program, |session, rank| {
        let ids = Tensor::try_from_slice(&[2], &[0i32, 3 + rank as i32]).expect("ids");
        failed(session.call("f", &[ones(4), ids.into()]))
    });
    assert!(messages(&errors[0]).starts_with("rank 1 failed: "), "{}", messages(&errors[0]));
    assert!(!messages(&errors[1]).contains("rank 1 failed"), "{}", messages(&errors[1]));
}

#[test]
fn a_rank_that_panics_ends_the_others() {
    let engine =
        Engine::new().with_world(2).with_rank_limit(super::support::LIMIT).with_function("trip", |args| {
            assert_eq!(args[0].as_i64(), Some(0), "a fault of the host");
            Ok(tg::Value::Unit)
        });
    let text = format!("{TWO_STEPS}trip(rank)\nf(ones([4]))");
    let program = engine.compile(Source::text("ranks.tg", text)).unwrap_or_else(|e| panic!("{e}"));
    let errors = on_ranks(&program, |session, _| failed(session.run()));
    assert!(messages(&errors[0]).starts_with("rank 1 failed: "), "{}", messages(&errors[0]));
    assert!(messages(&errors[1]).contains("a fault of the host"), "{}", messages(&errors[1]));
}

#[test]
fn a_rank_that_ends_early_is_named() {
    let text = format!("{TWO_STEPS}let n = 3\nif rank == 1 {{ n = 1 }}\nfor i in 0..n {{ f(ones([4])) }}");
    let program = compile(2, &text);
    let results = on_ranks(&program, |session, _| {
        let result = session.run();
        session.end();
        result
    });
    let [Err(error), Ok(())] = &results[..] else { panic!("{results:?}") };
    let expected = "rank 1 has ended, and rank 0 waits for it in `all_reduce` of f32[4] (ranks.tg:2)";
    assert_eq!(messages(error), expected);
}

#[test]
fn a_rank_that_does_not_come_is_named_within_the_limit() {
    let limit = Duration::from_millis(300);
    let engine = Engine::new().with_world(3).with_rank_limit(limit);
    let program = engine.compile(Source::text("ranks.tg", TWO_STEPS)).unwrap_or_else(|e| panic!("{e}"));
    let results = on_ranks(&program, |session, rank| {
        if rank == 1 {
            // Its session is alive, and does nothing.
            thread::sleep(Duration::from_millis(1500));
            return None;
        }
        let begin = Instant::now();
        let error = failed(session.call("f", &[ones(4)]));
        // The group is over: what comes later fails at once, with the same words.
        let again = failed(session.call("late", &[ones(4)]));
        assert_eq!(messages(&again), messages(&error));
        Some((error, begin.elapsed()))
    });
    for (error, elapsed) in results.into_iter().flatten() {
        let expected = "rank 1 did not come to `all_reduce` of f32[4] (ranks.tg:2) within 0.3 s";
        assert_eq!(messages(&error), expected);
        assert!(elapsed >= limit && elapsed < Duration::from_millis(1400), "{elapsed:?}");
    }
}

#[test]
fn stopping_one_rank_wakes_all() {
    let program = compile(3, TWO_STEPS);
    let begin = Instant::now();
    let errors = on_ranks(&program, |session: &mut Session, rank| {
        if rank == 2 {
            thread::sleep(Duration::from_millis(300));
            session.end();
            return None;
        }
        let token = session.cancel_token();
        if rank == 0 {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                token.cancel();
            });
        }
        Some(failed(session.call("f", &[ones(4)])))
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
    for error in errors.into_iter().flatten() {
        assert_eq!(error.diagnostics()[0].code, tg::codes::CANCELLED, "{error}");
    }
}

#[test]
fn conditions_on_the_rank_are_refused_in_graph_code() {
    let text = "step f(x: f32[4]) {\n  if rank == 0 { return x }\n  return all_reduce(x)\n}";
    for world in [1, 4] {
        let error = try_compile(world, text).map(|_| ()).expect_err("a condition on the rank");
        assert_eq!(messages(&error), "a condition on `rank` in graph code");
        assert_eq!(error.diagnostics()[0].code, tg::codes::DEPENDS_ON_RANK);
    }
    let text = "model M { param w: f32[4] = full([4], rank) }\nlet m = M()\nstep f() { return m.w }";
    let error = try_compile(2, text).map(|_| ()).expect_err("an initialiser with the rank");
    assert_eq!(messages(&error), "`rank` in the first value of a parameter or state");
}

#[test]
fn sessions_and_ranks_must_fit() {
    let program = compile(4, TWO_STEPS);
    let error = failed(program.session());
    assert_eq!(messages(&error), "the program is compiled for 4 ranks, and runs on 1");
    let error = failed(compile(5000, TWO_STEPS).sessions());
    assert_eq!(messages(&error), "5000 ranks, and one process starts at most 1024");
    assert_eq!(compile(0, TWO_STEPS).world(), 1);
}
