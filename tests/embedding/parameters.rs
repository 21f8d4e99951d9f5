//! Parameters, variables and files of them.

use tg::{Tensor, engine::Value};

use super::support::{TRAIN, first, ones, session};

#[test]
fn parameters_have_names_types_and_values() {
    let mut session = session(
        "use nn\nmodel Net() { let blocks = [nn.Linear(2, 3), nn.Linear(3, 1, bias: false)]\n fn forward(x) = blocks[1](blocks[0](x)) }\nlet net = Net()",
    );
    let listed: Vec<String> =
        session.parameters("net").expect("a model").iter().map(|p| format!("{} {}", p.name, p.ty)).collect();
    assert_eq!(listed, ["net.blocks.0.w f32[3, 2]", "net.blocks.0.b f32[3]", "net.blocks.1.w f32[1, 3]"]);
    assert_eq!(session.parameters("").expect("all").len(), 3);
    session.set("net.blocks.1.w", ones(&[1, 3])).expect("it fits");
    let w = session.get("net.blocks.1.w").expect("a parameter");
    assert_eq!(w.as_tensor().and_then(|t| t.as_slice::<f32>()), Some(&[1.0, 1.0, 1.0][..]));
    session.set("net.blocks.0.w", ones(&[3, 2])).expect("it fits");
    session.set("net.blocks.0.b", ones(&[3])).expect("it fits");
    let y = session.call("net", &[ones(&[1, 2]).into()]).expect("models are called too");
    assert_eq!(y.as_f64(), Some(9.0));
    let error = session.set("net.blocks.1.w", ones(&[3, 1])).expect_err("another shape");
    assert_eq!(first(&error), "TG0220 `net.blocks.1.w` is f32[1, 3], got a tensor f32[3, 1]");
    let error = session.set("net.blocks.1.w", 1.0).expect_err("a number");
    assert_eq!(first(&error), "TG0220 `net.blocks.1.w` is f32[1, 3], got a number");
    let error = session.get("net.blocks.2.w").expect_err("only two");
    assert_eq!(first(&error), "TG0202 `net.blocks.2.w`: a list has no `2`");
    let error = session.get("net.block").expect_err("a slip");
    assert_eq!(error.diagnostics()[0].help, ["did you mean `blocks`?"]);
    let error = session.parameters("nn").expect_err("no model");
    assert_eq!(first(&error), "TG0210 `nn` is the module `nn`, which has no parameters");
}

#[test]
fn variables_are_read_and_set() {
    let mut session =
        session("let lr = 0.5\nlet xs = [1, 2]\nfn f(x) = x * lr\nstep g(x: f32[2]) { return x * lr }");
    assert_eq!(session.get("lr").expect("a variable"), Value::Float(0.5));
    assert_eq!(session.get("xs.1").expect("an item"), Value::Int(2));
    session.set("lr", 2.0).expect("a variable");
    assert_eq!(session.call("f", &[3.0.into()]).expect("it runs"), Value::Float(6.0));
    let step = |session: &mut tg::Session| -> Tensor {
        session.call("g", &[ones(&[2]).into()]).expect("it runs").try_into().expect("a tensor")
    };
    assert_eq!(step(&mut session).get_f64(0), Some(2.0));
    session.set("lr", 3.0).expect("a variable");
    assert_eq!(step(&mut session).get_f64(0), Some(3.0), "a step that depends on it is compiled again");
    assert_eq!(first(&session.set("rl", 1.0).expect_err("no such name")), "TG0201 unknown name `rl`");
    let error = session.set("g", 1.0).expect_err("a step");
    assert_eq!(first(&error), "TG0210 `g` is the step `g`, which a host cannot set");
}

#[test]
fn a_saved_session_goes_on_bit_for_bit() {
    let folder = std::env::temp_dir().join(format!("tg-embedding-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("state.safetensors");
    let text = TRAIN.replace("optim.sgd(lr: 0.1)", "optim.adam(lr: 0.1)");
    let args: [Value; 2] = [ones(&[4, 2]).into(), 1.0.into()];
    let mut one = session(&text);
    for _ in 0..3 {
        one.call("train", &args).expect("it runs");
    }
    one.save(&file).expect("it is written");
    let mut other = session(&text);
    other.load(&file).expect("it is read");
    for _ in 0..3 {
        assert_eq!(one.call("train", &args).expect("it runs"), other.call("train", &args).expect("it runs"));
    }
    for parameter in one.parameters("").expect("all") {
        assert_eq!(one.get(&parameter.name).expect("there"), other.get(&parameter.name).expect("there"));
    }
    assert!(one.parameters("").expect("all").len() > 2, "the states of the optimizer are listed too");
    // Another model's file is refused, and nothing is half loaded.
    let mut wider = session(&TRAIN.replace("nn.Linear(2, 1)", "nn.Linear(2, 2)"));
    let before = wider.get("net.w").expect("there");
    let error = wider.load(&file).expect_err("another shape");
    assert!(first(&error).starts_with("TG0404 "), "{error:?}");
    assert_eq!(wider.get("net.w").expect("there"), before);
    let error = one.save(folder.join("state.bin")).expect_err("another format");
    assert!(first(&error).contains("`save` uses safetensors files"), "{error:?}");
    one.save_parts(folder.join("net.safetensors"), &["net"]).expect("it is written");
    other.load_parts(folder.join("net.safetensors"), &["net"]).expect("it is read");
    std::fs::remove_dir_all(&folder).expect("it is there");
}
