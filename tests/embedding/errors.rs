//! What hosts rely on of the types: threads, and errors as the ecosystem knows them.

use miette::{Diagnostic as _, NarratableReportHandler};
use tg::{
    CancelToken, CompileOptions, Engine, Error, Program, Session, Source, Tensor,
    engine::{Checked, HostFunction, HostOp, Limits, Value, WrongKind},
};

#[test]
fn types_move_and_are_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn moved<T: Send + 'static>() {}
    shared::<Engine>();
    shared::<Program>();
    shared::<Checked>();
    shared::<Error>();
    shared::<Source>();
    shared::<Tensor>();
    shared::<Value>();
    shared::<Limits>();
    shared::<CancelToken>();
    shared::<CompileOptions>();
    shared::<HostFunction>();
    shared::<HostOp>();
    moved::<Session>();
}

#[test]
fn a_program_runs_on_many_threads() {
    let text = "step f(x: f32[2]) { return x * 2.0 }";
    let program = Engine::new().compile(Source::text("p.tg", text)).expect("sound");
    let sums: Vec<Option<f64>> = std::thread::scope(|scope| {
        let run = |k: usize| {
            let x = Tensor::from_slice(&[2], &[k as f32; 2]).expect("memory");
            let y = program.session().and_then(|mut s| s.call("f", &[x.into()])).expect("it runs");
            y.as_tensor().and_then(|t| t.get_f64(1))
        };
        let threads: Vec<_> = (0..4).map(|k| scope.spawn(move || run(k))).collect();
        threads.into_iter().map(|t| t.join().expect("the thread ends")).collect()
    });
    assert_eq!(sums, [Some(0.0), Some(2.0), Some(4.0), Some(6.0)]);
}

#[test]
fn errors_are_errors() {
    fn is_error<E: std::error::Error + 'static>(_: &E) {}
    let error = Engine::new().compile(Source::text("p.tg", "let x = ")).expect_err("no program");
    is_error(&error);
    is_error(&WrongKind { expected: "a number", got: "a string".into() });
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert!(boxed.downcast_ref::<Error>().is_some());
}

#[test]
fn miette_draws_labels_help_and_codes() {
    let text = "let scale = 2\nstep train(x: f32[4, 2]) { return x @ ones([3, 5]) }\nlet y = scael";
    let error = Engine::new().compile(Source::text("p.tg", text)).expect_err("two mistakes");
    assert_eq!(error.diagnostics().len(), 2);
    assert_eq!(error.related().map(Iterator::count), Some(1));
    let mut drawn = String::new();
    NarratableReportHandler::new().render_report(&mut drawn, &error).expect("it can be drawn");
    for part in
        ["TG0221", "TG0201", "x @ ones([3, 5])", "p.tg", "did you mean `scale`?", "f32[4, 2]", "f32[3, 5]"]
    {
        assert!(drawn.contains(part), "{part} is missing from\n{drawn}");
    }
    let labels: Vec<usize> = error.labels().expect("labels").map(|l| l.offset()).collect();
    assert!(labels.contains(&text.find("x @").expect("there")), "{labels:?}");
}
