//! `Session::call`: what goes in, what comes out, what goes wrong.

use std::sync::Arc;

use tg::{
    Tensor,
    engine::{Value, WrongKind},
};

use super::support::{TRAIN, compile, first, ones, session};

#[test]
fn every_kind_of_argument() {
    let mut session = session(
        "fn describe(x, rate, name, flag, sizes, kind) = (x * rate, name, flag, sizes, kind, 3, len(sizes))",
    );
    let list: Value = vec![1, 2, 3].into();
    let args =
        [ones(&[2]).into(), 0.5.into(), "relu".into(), true.into(), list.clone(), tg::ir::DType::BF16.into()];
    let result = session.call("describe", &args).expect("it runs");
    let [x, name, flag, sizes, kind, three, count] = result.items().expect("a tuple") else {
        panic!("seven results, got {result:?}");
    };
    assert_eq!(x.as_tensor().and_then(|t| t.as_slice::<f32>()), Some(&[0.5, 0.5][..]));
    assert_eq!((name.as_str(), flag.as_bool(), sizes), (Some("relu"), Some(true), &list));
    assert_eq!(
        (kind, three.as_i64(), count.as_f64()),
        (&Value::DType(tg::ir::DType::BF16), Some(3), Some(3.0))
    );
    assert_eq!(result.tensors().len(), 1);
}

#[test]
fn steps_take_strings_bools_and_lists() {
    let mut session = session(
        r#"step f(x: f32[2], mode, sizes, twice: bool) {
             let y = if mode == "relu" { relu(x) } else { x }
             for size in sizes { y = y + size }
             return if twice { y * 2.0 } else { y }
           }"#,
    );
    let x = Tensor::from_slice(&[2], &[-1.0f32, 1.0]).expect("memory");
    let mut call = |mode: &str, twice: bool| -> Vec<f32> {
        let sizes: Value = vec![1, 2].into();
        let y = session.call("f", &[(&x).into(), mode.into(), sizes, twice.into()]).expect("it runs");
        y.as_tensor().and_then(|t| t.as_slice::<f32>()).expect("a tensor").to_vec()
    };
    assert_eq!(call("relu", false), [3.0, 4.0]);
    assert_eq!(call("none", true), [4.0, 8.0]);
    assert_eq!(call("relu", false), [3.0, 4.0]);
}

#[test]
fn a_loss_is_a_number() {
    let mut session = session(TRAIN);
    let mut call = |rate: f64| -> Result<f64, Box<dyn std::error::Error>> {
        Ok(session.call("train", &[ones(&[4, 2]).into(), rate.into()])?.try_into()?)
    };
    let (first, second) = (call(1.0).expect("it runs"), call(1.0).expect("it runs"));
    assert!(second < first && second > 0.0);
    assert_eq!(call(0.0).expect("it runs"), 0.0);
    // A new rate is no new plan.
    assert_eq!(session.plans().len(), 1);
}

#[test]
fn objects_go_back_in() {
    let mut one = session("use nn\nlet net = nn.Linear(2, 1)\nfn apply(m, x) = m(x)");
    let net = one.get("net").expect("a model");
    assert_eq!(net.kind(), "a model `Linear`");
    let y = one.call("apply", &[net.clone(), ones(&[3, 2]).into()]).expect("it runs");
    assert_eq!(y.as_tensor().map(|t| t.shape().to_vec()), Some(vec![3, 1]));
    let mut other = session("fn apply(m, x) = m(x)");
    let error = other.call("apply", &[net, ones(&[3, 2]).into()]).expect_err("another session's");
    assert_eq!(first(&error), "TG0212 a model `Linear` belongs to another session");
}

#[test]
fn wrong_calls_name_the_signature() {
    let mut session = session(TRAIN);
    let mut fail = |name: &str, args: &[Value]| session.call(name, args).expect_err("it is wrong");
    let error = fail("train", &[]);
    assert_eq!(first(&error), "TG0212 `train` needs `x`, `rate`");
    let diagnostic = &error.diagnostics()[0];
    assert_eq!(error.sources().text(diagnostic.primary.span), "train");
    assert_eq!(diagnostic.notes, ["it is declared as `step train(x: f32[4, 2], rate: f32)`"]);
    let error = fail("train", &[ones(&[3]).into(), 1.0.into()]);
    assert_eq!(first(&error), "TG0220 `x` of `train` is `f32[4, 2]`, got f32[3]");
    assert_eq!(error.diagnostics()[0].notes, ["it is declared as `step train(x: f32[4, 2], rate: f32)`"]);
    let error = fail("train", &[ones(&[4, 2]).into(), "fast".into()]);
    assert_eq!(first(&error), "TG0210 `rate` of `train` is a number (f32), got a string");
    let error = fail("train", &[ones(&[4, 2]).into(), 1.0.into(), 2.0.into()]);
    assert_eq!(first(&error), "TG0212 `train` takes 2 arguments, got 3");
    let error = fail("tarin", &[]);
    assert_eq!(first(&error), "TG0201 unknown name `tarin`");
    assert_eq!(error.diagnostics()[0].help, ["did you mean `train`?"]);
    let error = fail("scale", &[]);
    assert_eq!(first(&error), "TG0211 a number cannot be called");
    // The session goes on.
    session.call("train", &[ones(&[4, 2]).into(), 1.0.into()]).expect("it runs");
}

#[test]
fn deep_lists_are_refused() {
    let mut session = session("fn f(x) = x");
    let mut deep: Value = 1.into();
    for _ in 0..200 {
        deep = Value::List(vec![deep]);
    }
    let error = session.call("f", &[deep]).expect_err("too deep");
    assert_eq!(first(&error), "TG0235 lists of the host are nested more than 100 deep");
}

#[test]
fn conversions_say_what_is_wrong() {
    let wrong: WrongKind = f64::try_from(Value::from("text")).expect_err("no number");
    assert_eq!(wrong.to_string(), "expected a number, got a string");
    let wrong = Tensor::try_from(Value::from(vec![1, 2])).expect_err("no tensor");
    assert_eq!(wrong.to_string(), "expected a tensor, got a list of 2 items");
    let wrong = Tensor::try_from_slice(&[3], &[1.0f32]).expect_err("too few");
    assert_eq!(wrong.to_string(), "f32[3] holds 3, got 1");
    assert_eq!(i64::try_from(Value::from(7)), Ok(7));
    assert_eq!(Value::from((1, "a")).kind(), "a tuple of 2 values");
}

#[test]
fn steps_are_planned_once() {
    let program = compile(TRAIN);
    assert_eq!(program.plans_made(), 1);
    for _ in 0..2 {
        let mut session = program.session().expect("a session");
        for _ in 0..2 {
            session.call("train", &[ones(&[4, 2]).into(), 1.0.into()]).expect("it runs");
        }
        assert!(Arc::ptr_eq(&session.plans()[0], program.plan("train").expect("planned")));
    }
    assert_eq!(program.plans_made(), 1, "the sessions take the plan of the compilation");
    // Other values of what the plan depends on make another plan.
    let mut session = program.session().expect("a session");
    session.set("scale", 2.0).expect("a variable");
    session.call("train", &[ones(&[4, 2]).into(), 1.0.into()]).expect("it runs");
    assert_eq!(program.plans_made(), 2);
}

#[test]
fn library_examples_are_planned_once() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/blocks_manual.tg"))
        .expect("the example");
    let mut options = tg::CompileOptions::default();
    for (name, value) in [("DEPTH", "3"), ("C", "4"), ("BATCH", "2"), ("SIZE", "4")] {
        options.sets.push((name.into(), value.into()));
    }
    let program = tg::Engine::new().compile_with(tg::Source::text("blocks.tg", text), &options);
    let program = program.unwrap_or_else(|e| panic!("{e:#?}"));
    let made = program.plans_made();
    assert_eq!(made, program.plans().len());
    program.session().expect("a session").run().expect("it runs");
    assert_eq!(program.plans_made(), made);
}
