//! Functions and ops that the host brings.

use tg::{
    Engine, Source, Tensor,
    engine::{HostFunction, HostOp, Value},
    ir::{DType, Type},
};

use super::support::{first, ones};

/// x ↦ x³, for f32.
fn cube() -> HostOp {
    HostOp::new("cube", same_type, |args, results| {
        let (Some(x), Some(y)) = (args[0].as_slice::<f32>(), results[0].as_mut_slice::<f32>()) else {
            return Err("only for f32".into());
        };
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x * x);
        Ok(())
    })
}

fn same_type(types: &[Type]) -> Result<Vec<Type>, String> {
    match types {
        [x] if x.dtype().is_float() => Ok(vec![x.clone()]),
        _ => Err("takes one floating-point tensor".into()),
    }
}

/// (x, y, dy) ↦ 3 x² dy
fn cube_grad() -> HostOp {
    let infer = |types: &[Type]| match types {
        [x, _, _] => Ok(vec![x.clone()]),
        _ => Err("takes x, y and dy".to_string()),
    };
    HostOp::new("cube_grad_op", infer, |args, results| {
        let (Some(x), Some(dy)) = (args[0].as_slice::<f32>(), args[2].as_slice::<f32>()) else {
            return Err("only for f32".into());
        };
        let dx = results[0].as_mut_slice::<f32>().ok_or("only for f32")?;
        dx.iter_mut().zip(x.iter().zip(dy)).for_each(|(dx, (x, dy))| *dx = 3.0 * x * x * dy);
        Ok(())
    })
}

fn run(engine: &Engine, text: &str, x: &Tensor) -> Result<Value, tg::Error> {
    let program = engine.compile(Source::text("p.tg", text))?;
    program.session()?.call("f", &[x.into()])
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_tensor().and_then(|t| t.as_slice::<f32>()).expect("an f32 tensor").to_vec()
}

#[test]
fn functions_are_called_by_scripts() {
    let engine = Engine::new()
        .with_function("double", |args| match args {
            [x] => x.as_f64().map(|x| (2.0 * x).into()).ok_or_else(|| format!("not for {}", x.kind())),
            _ => Err("takes one number".into()),
        })
        .with_host_function(
            HostFunction::new("readings", |_| {
                Tensor::try_from_slice(&[2], &[1.0f32, 2.0]).map(Value::from).map_err(|e| e.to_string())
            })
            .returning(Type::new(DType::F32, [2]).expect("small")),
        );
    let text = "let x = readings()\nstep f(y: f32[2]) { return y * x }\nprint(double(4))\nprint(f(x))";
    let program = engine.compile(Source::text("p.tg", text)).unwrap_or_else(|e| panic!("{e:#?}"));
    let mut session = program.session().expect("a session");
    let printed = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let sink = std::sync::Arc::clone(&printed);
    session.on_print(move |line| {
        let mut text = sink.lock().expect("one thread");
        text.push_str(line);
        text.push('\n');
    });
    session.run().unwrap_or_else(|e| panic!("{e:#?}"));
    assert_eq!(*printed.lock().expect("one thread"), "8.0\nf32[2]\n[1. 4.]\n");
    let error = session.eval("double(\"x\")").expect_err("no number");
    assert_eq!(first(&error), "TG0407 the host function `double` failed: not for a string");
    let error = session.eval("double(x: 1)").expect_err("no names");
    assert_eq!(first(&error), "TG0212 the host function `double` has no parameter `x`");
    let error = session.eval("step g(x: f32[2]) { return x * double(1) }\ng(x)").expect_err("graph code");
    assert_eq!(first(&error), "TG0230 the host function `double` is called from graph code");
    let error = session.eval("duoble(1)").expect_err("a slip");
    assert_eq!(error.diagnostics()[0].help, ["did you mean `double`?"]);
}

#[test]
fn broken_promises_and_panics_are_errors() {
    let engine = Engine::new()
        .with_function("fails", |_| panic!("out of ink"))
        .with_host_function(
            HostFunction::new("lies", |_| Ok(Value::Int(1)))
                .returning(Type::new(DType::F32, [2]).expect("small")),
        )
        .with_op(HostOp::new("explodes", same_type, |_, _| panic!("boom")))
        .with_op(HostOp::new("shapeless", |_| panic!("no shape"), |_, _| Ok(())));
    let mut session = engine.session();
    let message = |session: &mut tg::Session, text: &str| first(&session.eval(text).expect_err("it fails"));
    assert_eq!(
        message(&mut session, "fails()"),
        "TG0407 the host function `fails` failed: it panicked: out of ink"
    );
    assert_eq!(
        message(&mut session, "lies()"),
        "TG0407 the host function `lies` gave a whole number, and promised f32[2]"
    );
    assert_eq!(
        message(&mut session, "shapeless(ones([2]))"),
        "TG0221 the shape rule of the host op `shapeless` panicked: no shape"
    );
    let text = "step f(x: f32[2]) { return explodes(x) }\nf(ones([2]))";
    assert_eq!(message(&mut session, text), "TG0402 the kernel of the host op `explodes` panicked: boom");
    assert_eq!(session.eval("1 + 1").expect("it goes on").value.as_deref(), Some("2"));
}

#[test]
fn ops_are_planned_differentiated_and_recomputed() {
    let x = Tensor::from_slice(&[2], &[1.0f32, 2.0]).expect("memory");
    let body = "step f(x: f32[2]) { let loss = sum(exp(cube(x) * 0.1))\n return grad(loss, x) }";
    let region = "step f(x: f32[2]) { let h = checkpoint < cube(x) * 0.1 >\n let loss = sum(exp(h))\n return grad(loss, x) }";
    let builtin = "step f(x: f32[2]) { let loss = sum(exp(x * x * x * 0.1))\n return grad(loss, x) }";
    let expected = numbers(&run(&Engine::new(), builtin, &x).expect("it runs"));
    let by_op = Engine::new().with_op(cube().with_gradient_op(cube_grad()));
    let by_function = Engine::new().with_op(cube().with_gradient_function("slope"));
    let function = "fn slope(x, y, dy) = 3.0 * x * x * dy\n";
    for text in [body, region] {
        for got in [run(&by_op, text, &x), run(&by_function, &format!("{function}{text}"), &x)] {
            let got = numbers(&got.unwrap_or_else(|e| panic!("{e:#?}")));
            for (got, expected) in got.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-5 * expected.abs(), "{got} is not {expected}");
            }
        }
    }
    // The plan counts its memory: the result of the op has a buffer of its own.
    let program = by_op.compile(Source::text("p.tg", body)).expect("a sound program");
    let plan = program.plan("f").expect("planned");
    let names: Vec<&str> = plan.graph.nodes().map(|n| n.op().name()).collect();
    assert_eq!(names.iter().filter(|n| **n == "opaque").count(), 2, "{names:?}");
    // Script code runs it at once.
    assert_eq!(
        numbers(
            &by_op
                .compile(Source::text("p.tg", "fn f(x) = cube(x)"))
                .and_then(|p| p.session()?.call("f", &[(&x).into()]))
                .expect("it runs")
        ),
        [1.0, 8.0]
    );
}

#[test]
fn mistakes_with_ops_are_told() {
    let engine = Engine::new().with_op(cube());
    let error = |engine: &Engine, text: &str| {
        first(&engine.compile(Source::text("p.tg", text)).expect_err("it is wrong"))
    };
    assert_eq!(
        error(&engine, "step f(x: f32[2]) { return grad(sum(cube(x)), x) }"),
        "TG0232 the host op `cube` has no gradient"
    );
    assert_eq!(
        error(&engine, "step f(x: i32[2]) { return cube(x) }"),
        "TG0221 `cube` of i32[2]: takes one floating-point tensor"
    );
    assert_eq!(
        error(&engine, "step f(x: f32[2]) { return cube(x, 1) }"),
        "TG0210 the host op `cube` takes tensors, got a whole number"
    );
    let slope = Engine::new().with_op(cube().with_gradient_function("slope"));
    assert_eq!(
        error(&slope, "step f(x: f32[2]) { return grad(sum(cube(x)), x) }"),
        "TG0232 the gradient of the host op `cube` is `slope`, which the script does not define"
    );
    assert_eq!(
        error(&slope, "fn slope(x, y, dy) = sum(dy)\nstep f(x: f32[2]) { return grad(sum(cube(x)), x) }"),
        "TG0221 the gradient `slope` of `cube` gives f32, expected f32[2]"
    );
    let named = Engine::new().with_function("relu", |_| Ok(Value::Unit));
    assert_eq!(
        error(&named, "let x = 1"),
        "TG0207 the host registers `relu`, which is a name of the language"
    );
    assert_eq!(error(&Engine::new(), "step f(x: f32[2]) { return cube(x) }"), "TG0201 unknown name `cube`");
}

#[test]
fn an_op_that_nobody_registered_can_be_planned_and_not_run() {
    use tg::{
        exec::cpu::{ScalarPage, eval},
        ir::{Graph, Input, Output},
        ops,
    };
    let ty = Type::new(DType::F32, [2]).expect("small");
    let mut graph = Graph::new();
    graph.inputs.push(Input { name: "x".into(), ty: ty.clone() });
    let x = graph.value(ops::Input { index: 0 }, &[]).expect("an input");
    let op = ops::Opaque {
        name: "theirs".into(),
        results: vec![ty],
        overwrites: Vec::new(),
        workspace: 0,
        host: None,
    };
    let y = graph.value(op, &[x]).expect("it fits");
    let origin = graph.cursor.origin;
    graph.outputs.push(Output { name: "y".into(), value: y, origin });
    assert!(tg::lower::plan(&graph, "f", &Default::default()).is_ok_and(|plan| plan.peak_bytes() > 0));
    let error = eval(&graph, &mut [], &[ones(&[2])], &ScalarPage::default()).expect_err("no kernel");
    assert_eq!(error.to_string(), "`opaque` \"theirs\" has no kernel here: it can only be planned");
    assert_eq!(error.error.help.as_deref(), Some("a host registers ops with `Engine::with_op`"));
}
