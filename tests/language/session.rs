//! The engine as a library: sessions, calls, interactive input.

use tg::{
    engine::{Engine, Source},
    exec::Tensor,
};

use crate::support::errors_of;

const PROGRAM: &str = r#"
use nn
use optim
let net = nn.Linear(2, 1)
step train(x: f32[4, 2]) {
  let loss = mean(square(net(x)))
  minimize loss over net with optim.sgd(lr: 0.1)
  return loss
}
print("this runs in `run` only")
"#;

#[test]
fn steps_are_called_with_tensors() {
    let program = Engine::new().compile(Source::text("p.tg", PROGRAM)).expect("a sound program");
    assert!(program.plan("train").expect("planned").peak_bytes() > 0);
    assert!(program.plan("trian").is_err_and(|e| e.to_string() == "no step `trian` is planned"));
    let mut session = program.session().expect("a session");
    session.on_print(|line| panic!("printed {line}"));
    let x = Tensor::from_slice(&[4, 2], &[1.0f32; 8]).expect("8 elements");
    let first = session.call("train", &[(&x).into()]).expect("it runs").as_f64();
    let second = session.call("train", &[(&x).into()]).expect("it runs").as_f64();
    assert!(second.is_some() && second < first);
    let wrong = Tensor::from_slice(&[3], &[1.0f32; 3]).expect("3 elements");
    let error = session.call("train", &[wrong.into()]).expect_err("the shape is wrong");
    assert!(errors_of(&error).contains("TG0220 `x` of `train` is `f32[4, 2]`, got f32[3]"), "{error:?}");
    let error = session.call("tarin", &[]).expect_err("no such step");
    assert!(errors_of(&error).contains("unknown name `tarin`"));
    // The session is still alive.
    session.call("train", &[x.into()]).expect("it runs");
}

#[test]
fn interactive_input() {
    let mut session = Engine::new().session();
    assert_eq!(session.eval("let x = tensor([1.0, 2.0])").expect("fine").value, None);
    let shown = session.eval("x * 2").expect("fine");
    assert_eq!((shown.value.as_deref(), shown.kind.as_str()), (Some("f32[2]\n[2. 4.]"), "f32[2]"));
    assert_eq!(session.eval("sum(ans)").expect("fine").value.as_deref(), Some("6.0"));
    let error = session.eval("let y = x + ones([3])").expect_err("shapes clash");
    assert!(errors_of(&error).contains("TG0221"), "{error:?}");
    assert!(session.eval("1 +").is_err());
    session.eval("fn f(a) = a + 1").expect("fine");
    session.eval("fn f(a) = a + 2").expect("definitions can be replaced");
    assert_eq!(session.eval("f(1)").expect("fine").value.as_deref(), Some("3"));
    assert_eq!(session.eval("\"text\"").expect("fine").value.as_deref(), Some("\"text\""));
    let names: Vec<String> = session.variables().iter().map(|v| v.name.to_string()).collect();
    assert!(names.contains(&"x".to_string()) && names.contains(&"f".to_string()));
}

#[test]
fn runs_can_be_cancelled() {
    let program = Engine::new()
        .compile(Source::text("loop.tg", "let n = 0\nfor i in 0..1000000000 { n += 1 }\nprint(n)"))
        .expect("a sound program");
    let mut session = program.session().expect("a session");
    let cancel = session.cancel_token();
    let waiting = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        cancel.cancel();
    });
    let error = session.run().expect_err("it is stopped");
    waiting.join().expect("the other thread");
    assert!(errors_of(&error).contains("TG0405"), "{error:?}");
    assert_eq!(session.eval("1 + 1").expect("it goes on").value.as_deref(), Some("2"));
}

#[test]
fn sessions_and_programs_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let program = Engine::new().compile(Source::text("p.tg", PROGRAM)).expect("a sound program");
    is_send(&program);
    let session = program.session().expect("a session");
    is_send(&session);
    let shared = std::sync::Arc::new(program);
    let other = std::sync::Arc::clone(&shared);
    let planned = std::thread::spawn(move || other.plans().len()).join().expect("the other thread");
    assert_eq!(planned, 1);
}

#[test]
fn unreadable_files_are_errors() {
    let error = Source::file("/no/such/file.tg").expect_err("there is none");
    assert_eq!(error.to_string(), "cannot read `/no/such/file.tg`: there is no such file");
}

#[test]
fn syntax_errors_leave_no_program() {
    let error = Engine::new()
        .compile(Source::text("p.tg", "let a = 3 +* 2\nprint(undefined)"))
        .expect_err("no program");
    let codes: Vec<_> = error.diagnostics().iter().map(|d| d.code.0).collect();
    assert_eq!(codes, ["TG0101", "TG0201"], "names are judged beside");
}

#[test]
fn a_failed_definition_is_reported_again() {
    let text = "let data = data.load(\"nothing.npy\")\nstep f(x: f32[2]) { return x * data }";
    let folder = crate::support::folder("failed_definition");
    let file = folder.join("nothing.npy");
    // The file is there when the program is compiled, and gone when it runs.
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(((header.len() + 1) as u16).to_le_bytes());
    bytes.extend(format!("{header}\n").bytes());
    bytes.extend([0; 8]);
    std::fs::write(&file, bytes).expect("a file");
    let source = Source::text("p.tg", text).in_directory(&folder);
    let program = Engine::new().compile(source).expect("a sound program");
    std::fs::remove_file(&file).expect("it is there");
    let mut session = program.session().expect("a session");
    for _ in 0..2 {
        let x = Tensor::from_slice(&[2], &[1.0f32; 2]).expect("2 elements");
        let error = session.call("f", &[x.into()]).expect_err("there is no file");
        assert!(errors_of(&error).contains("TG0403"), "{error:?}");
    }
}

#[test]
fn a_late_cancel_does_not_stop_the_next_call() {
    let program = Engine::new().compile(Source::text("p.tg", PROGRAM)).expect("a sound program");
    let mut session = program.session().expect("a session");
    session.run().expect("it runs");
    session.cancel_token().cancel();
    let x = Tensor::from_slice(&[4, 2], &[1.0f32; 8]).expect("8 elements");
    session.call("train", &[x.into()]).expect("nothing is left to stop");
}

#[test]
fn names_whose_inputs_failed_say_so() {
    let mut session = Engine::new().session();
    session.eval("let a, b = ones([2]) + ones([3]), 1").expect_err("shapes clash");
    let error = session.eval("a + 1").expect_err("nothing is bound");
    assert!(
        errors_of(&error).contains("TG0208 `a` has no value: the input that binds it failed"),
        "{error:?}"
    );
    assert_eq!(error.diagnostics()[0].secondary[0].text, "not bound, since this failed");
    assert!(session.eval("b = 2").is_err_and(|e| errors_of(&e).contains("TG0208")));
    session.eval("let a = 1").expect("fine");
    assert_eq!(session.eval("a + 1").expect("fine").value.as_deref(), Some("2"));
    // What was bound before keeps its value.
    session.eval("let a = ones([2]) + ones([3])").expect_err("shapes clash");
    assert_eq!(session.eval("a").expect("fine").value.as_deref(), Some("1"));
}

/// A step is compiled once; what goes wrong belongs to the call that runs.
#[test]
fn errors_of_a_step_name_the_call_that_failed() {
    let text = "fn pick(t, ids) = gather(t, ids)\nstep look(t: f32[4, 2], ids: i32[2]) {\n  return sum(pick(t, ids))\n}\nlet t = ones([4, 2])\nprint(look(t, tensor([0, 1], dtype: i32)))\nprint(look(t, tensor([0, 9], dtype: i32)))\n";
    let mut session =
        Engine::new().compile(Source::text("p.tg", text)).expect("sound").session().expect("a session");
    let error = session.run().expect_err("an index is outside");
    let [d] = error.diagnostics() else { panic!("{error:?}") };
    let line = |span| error.sources().start(span).line;
    assert_eq!(line(d.primary.span), 7);
    assert_eq!(d.secondary.iter().map(|l| line(l.span)).collect::<Vec<_>>(), [1, 3], "{d:?}");
}
