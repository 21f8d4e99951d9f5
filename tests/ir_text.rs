//! The text form of graphs, and the verifier.

use std::time::{Duration, Instant};

use tg::{
    ir::{
        Bind, Cursor, GradCallId, Graph, NodeId, Output, Policy, Region, RegionId, Role, SlotId, text, verify,
    },
    ops::{Barrier, BarrierKind, Binary, Op, Read, Unary, Write},
    source::{FileId, SourceMap, Span},
};

/// Every declaration, every op, every mark; in the form that is printed.
const EVERYTHING: &str = include_str!("ir_text/everything.tgir");

fn messages(text: &str) -> Vec<String> {
    match text::parse(text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|e| format!("{}: {}", e.code.0, e.message)).collect(),
    }
}

/// Messages with the text they point at.
fn places(text: &str) -> Vec<(String, String)> {
    let errors = text::parse(text).err().unwrap_or_default();
    let slice = |span: Span| text[span.start as usize..span.end as usize].to_owned();
    errors.into_iter().map(|e| (e.message, slice(e.primary.span))).collect()
}

#[test]
fn every_op_reads_back_as_it_is_printed() {
    let graph = match text::parse(EVERYTHING) {
        Ok(graph) => graph,
        Err(errors) => panic!("{errors:#?}"),
    };
    assert_eq!(text::print(&graph, None), EVERYTHING);
    assert_eq!(verify(&graph), Ok(()));
    assert_eq!(graph.len(), EVERYTHING.lines().filter(|l| l.starts_with('n')).count());
    let all = "Input Const Literal Iota Scalar Read Random Opaque Select Cast Reshape Transpose Broadcast Slice Copy Concat \
               Pad Insert Gather ScatterAdd StopGrad ArgReduce MatMul Softmax SoftmaxGrad LogSoftmax CrossEntropy \
               CrossEntropyGrad LayerNorm LayerNormGrad RmsNorm RmsNormGrad BatchNorm BatchNormGrad Conv2d \
               Conv2dGradInput Conv2dGradWeight MaxPool2d MaxPool2dGrad MaxPool2dGather AvgPool2d AvgPool2dGrad \
               Attention AttentionGrad Barrier Write Print CollectiveStart CollectiveDone";
    for op in all.split_whitespace() {
        let name = format!("{op}(");
        assert!(graph.nodes().any(|n| format!("{:?}", n.op()).starts_with(&name)), "no node has the op {op}");
    }
    for op in Unary::ALL.map(Op::from).into_iter().chain(Binary::ALL.map(Op::from)) {
        assert!(graph.nodes().any(|n| *n.op() == op), "no node has the op {op:?}");
    }
}

#[test]
fn what_a_text_says_is_in_the_graph() {
    let text = "\u{feff}tgir 1 # a comment\r\n\r\nslot 0 \"w\" param f32[2]\n  input 0 \"x # y\" f32[2]\ngrad_calls 1\n\
                region 0 bind=grad policy=names(\"a\") keep=[%h] outputs=[%y]\n\
                a: %x = input(){index=0}\nb: %h = relu(%x) : f32[2] @region(0) @name(0, \"h\")\n\
                %y = exp(%h) after a, b @region(0)\n%g = neg(%y) @backward(later, 0)\n\
                later: %w = write(%g) {slot=0} @update(0)\noutput \"y\" %y\n";
    let file = FileId(7);
    let graph = text::parse_file(file, text).expect("the text is right");
    assert_eq!(graph.len(), 5);
    let nodes: Vec<_> = graph.nodes().collect();
    assert_eq!(nodes[2].after(), [NodeId(0), NodeId(1)]);
    assert_eq!(nodes[3].role(), Role::Backward { of: NodeId(4), call: GradCallId(0) });
    assert_eq!(nodes[4].role(), Role::Update { slot: SlotId(0) });
    assert_eq!(graph.regions[0].nodes, 1..3);
    assert_eq!(
        (graph.regions[0].bind, &graph.regions[0].policy),
        (Bind::Grad, &Policy::Names(vec!["a".into()]))
    );
    assert_eq!(graph.regions[0].keep, [nodes[1].result(0)]);
    assert_eq!(graph.names.get(&nodes[1].result(0)).map(|n| &**n), Some("h"));
    assert_eq!(graph.inputs[0].name.as_ref(), "x # y");
    let span = graph.origins.get(nodes[1].origin()).span;
    assert_eq!(span.file, file);
    assert_eq!(
        &text[span.start as usize..span.end as usize],
        "b: %h = relu(%x) : f32[2] @region(0) @name(0, \"h\")"
    );
}

#[test]
fn sources_are_shown_as_comments() {
    let mut sources = SourceMap::new();
    let file = sources.add("a.tg", "let x = 1\nlet y = relu(x)\n");
    let mut graph = Graph::new();
    let x = graph.constant(tg::ir::DType::F32, 1.0).expect("a constant");
    let origin = tg::ir::Origin {
        span: Span { file, start: 18, end: 25 },
        parent: None,
        iteration: Some("block 2".into()),
    };
    graph.cursor.origin = graph.origins.intern(origin);
    graph.unary(Unary::Relu, x).expect("a number");
    let shown = text::print(&graph, Some(&sources));
    assert!(shown.ends_with("n1: %1 = relu(%0) : f32  # a.tg:2:9, block 2\n"), "{shown}");
    let again = text::parse(&shown).expect("comments are skipped");
    assert_eq!(text::print(&again, None), text::print(&graph, None));
}

#[test]
fn faults_of_a_text_are_found_where_they_are() {
    let start = "tgir 1\nslot 0 \"w\" param f32[2]\ninput 0 \"x\" f32[2]\nregion 0 bind=all\n%x = input() {index=0}\n";
    for (line, message, place) in [
        ("%y = frob(%x)", "unknown op `frob`", "frob"),
        ("%y = exp(%z)", "nothing makes `%z`", "%z"),
        ("%y = exp(%y)", "`%y` is used before it is made", "%y"),
        ("%x = exp(%x)", "`%x` is made twice", "%x"),
        ("%y = exp(%x) after nine", "no node has the label `nine`", "nine"),
        ("a: %y = exp(%x) after a", "`a` is waited for before it is run", "a"),
        ("%y = exp(%x) : f32[3]", "`exp` gives f32[2] here, not f32[3]", "f32[3]"),
        ("%y = exp(%x) : f32[2], f32[2]", "`exp` has 1 results, 2 types are given", "exp"),
        ("%y, %z = exp(%x)", "`exp` has 1 results, 2 are named", "exp"),
        ("exp(%x)", "`exp` has 1 results, 0 are named", "exp"),
        ("%y = exp(%x) {axis=0}", "`exp` has no attribute `axis`", "axis"),
        ("%y = sum(%x)", "`sum` needs the attribute `axes`", "sum"),
        ("%y = sum(%x) {axes=0}", "expected a list", "0"),
        (
            "%y = sum(%x) {axes=[99999999999999999999]}",
            "`99999999999999999999` is not a whole number from 0 to 2^64 − 1",
            "99999999999999999999",
        ),
        (
            "%y = broadcast(%x) {shape=[4294967296, 4294967296, 2]}",
            "f32[4294967296, 4294967296, 2] is too large: its size in bytes does not fit in 62 bits",
            "broadcast",
        ),
        ("%y = cast(%x) {to=f33}", "expected an element type", "f33"),
        ("%y = const() {dtype=f32, value=maybe}", "expected a number", "maybe"),
        ("%y = literal() {type=f32, data=0x123}", "expected bytes in hexadecimal, `0x00ff`", "0x123"),
        ("%y = iota() {type=f31[2], axis=0}", "`f31` is not an element type", "f31[2]"),
        ("%y = exp(%x) @region(3)", "region 3 is not declared", "3"),
        ("%y = exp(%x) @backward(q, 0)", "no node has the label `q`", "q"),
        ("%y = exp(%x) @backward(0)", "`@backward` with 1 values is not a mark of a node", "backward"),
        ("%y = exp(%x) @name(1, \"y\")", "expected the number of a result", "1"),
        ("%y = exp(%x) ?", "expected the end of the line, found `?`", "?"),
        ("%y = exp(%x", "expected `)`, found the end of the line", ""),
        ("%y = print(%x) {label=\"x}", "this string is not closed on its line", "\"x}"),
        ("%y = print(%x) {label=\"\\q\"}", "`\\q` is not an escape", "\\q"),
        ("slot 2 \"v\" param f32", "the next slot has the number 1", "2"),
        ("slot 1 \"v\" thing f32", "expected `param`, `frozen`, `state` or `optimizer`", "thing"),
        ("region 1 in 1", "expected a region declared above", "1"),
        ("region 1 color=red", "a region has no option `color`", "color"),
        (
            "scalar 0 clock",
            "expected `step`, `rank`, `update_count(…)`, `hyper(…)` or `argument(…)`",
            "clock",
        ),
        ("output \"y\" %y", "nothing makes `%y`", "%y"),
        ("hello", "`hello` is neither an op with operands nor a declaration", "hello"),
    ] {
        let found = places(&format!("{start}{line}\n"));
        assert_eq!(found, [(message.to_owned(), place.to_owned())], "{line}");
    }
    // Faults that only show in the whole graph are at a node.
    for (lines, message) in [
        ("%y = exp(%x) @backward(q, 3)\nq: %z = exp(%y)", "n1 (`exp`) is of gradient call 3 of 0"),
        ("%y = exp(%x) @update(3)", "n1 (`exp`) updates slot 3 that does not exist"),
        (
            "%w = write(%x) {slot=0}\n%r = read() {slot=0}",
            "n2 (`read`) reads slot 0 (`w`) after it was written",
        ),
        (
            "%a = exp(%x) @region(0)\n%b = exp(%x)\n%c = exp(%x) @region(0)",
            "region 0 is not contiguous: 2 nodes in 1..4",
        ),
    ] {
        assert_eq!(messages(&format!("{start}{lines}\n")), [format!("TG0101: {message}")], "{lines}");
    }
    assert_eq!(messages(""), ["TG0101: the text is empty: expected `tgir 1`"]);
    assert_eq!(messages("let x = 3\nlet y = 4"), ["TG0101: expected `tgir 1` in the first line"]);
    assert_eq!(messages("tgir 2"), ["TG0101: version 2 of the form is not known: expected 1"]);
    // One error does not hide those of other lines, nor make new ones.
    let text = format!("{start}%a = exp(%q)\n%b = exp(%a)\n%c = frob(%b)\nwhat\n");
    assert_eq!(messages(&text).len(), 3, "{:?}", messages(&text));
}

#[test]
fn every_cut_of_a_text_is_read() {
    for (at, c) in EVERYTHING.char_indices() {
        // Half of the lines is enough to have each form cut everywhere.
        if at % 3 == 0 {
            let _ = text::parse(&EVERYTHING[..at]);
            let _ = text::parse(&format!("{}{}", &EVERYTHING[..at], &EVERYTHING[at + c.len_utf8()..]));
        }
    }
    let _ = text::parse(&EVERYTHING.replace('4', "18446744073709551615"));
    let _ = text::parse(&EVERYTHING.replace('4', "0"));
    let _ = text::parse(&EVERYTHING.replace('1', "9223372036854775807"));
    let _ = text::parse(&EVERYTHING.replace(", ", ","));
    assert_eq!(messages(&EVERYTHING.replace(", ", " , ").replace('\n', " \r\n")), [""; 0]);
}

#[test]
fn texts_made_to_break_parsers_are_read_fast() {
    let n = 100_000;
    let start = Instant::now();
    let head = "tgir 1\n".to_owned();
    for text in [
        head.clone() + &"%y = exp(%x)\n".repeat(n),
        head.clone() + "%y = sum(%x) {axes=" + &"[".repeat(n),
        head.clone() + "%y = exp(" + &"%x, ".repeat(n),
        head.clone() + &"@".repeat(n),
        head.clone() + "%y = exp(%x) {" + &"a=1, ".repeat(n),
        head.clone()
            + &(0..n)
                .map(|i| {
                    format!("region {i}{}\n", if i > 0 { format!(" in {}", i - 1) } else { String::new() })
                })
                .collect::<String>(),
        "\"".repeat(n),
        "\0".repeat(n),
    ] {
        assert!(text::parse(&text).is_err_and(|e| !e.is_empty() && e.len() <= 200));
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_large_graph_takes_linear_time() {
    let mut graph = Graph::new();
    let mut value = graph.constant(tg::ir::DType::F32, 1.5).expect("a constant");
    let first = value;
    for i in 0..100_000u32 {
        graph.cursor.role = if i % 2 == 0 {
            Role::Forward
        } else {
            Role::Backward { of: NodeId(i / 2), call: GradCallId(0) }
        };
        let node = graph.push_after(Binary::Add, &[value, first], &[NodeId(i)]).expect("two numbers");
        value = graph.node(node).result(0);
    }
    graph.grad_calls = 1;
    let origin = tg::ir::Origins::NOWHERE;
    graph.outputs.push(Output { name: "sum".into(), value, origin });
    let start = Instant::now();
    let printed = text::print(&graph, None);
    let again = text::parse(&printed).expect("a printed graph parses");
    assert_eq!(text::print(&again, None), printed);
    assert_eq!(verify(&graph), Ok(()));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn the_verifier_finds_what_passes_may_break() {
    let mut good = Graph::new();
    good.slots.push(tg::ir::Slot {
        name: "w".into(),
        ty: tg::ir::Type::scalar(tg::ir::DType::F32),
        kind: tg::ir::SlotKind::State,
    });
    let region = Region {
        parent: None,
        bind: Bind::All,
        policy: Policy::Nothing,
        keep: Vec::new(),
        outputs: Vec::new(),
        origin: tg::ir::Origins::NOWHERE,
        nodes: 1..3,
    };
    good.regions.push(region.clone());
    let read = good.value(Read { slot: SlotId(0) }, &[]).expect("slot 0 exists");
    good.cursor.region = Some(RegionId(0));
    let y = good.unary(Unary::Exp, read).expect("a number");
    let b = good.value(Barrier { kind: BarrierKind::Region(RegionId(0)) }, &[y]).expect("a value");
    good.cursor.region = None;
    good.value(Write { slot: SlotId(0) }, &[b]).expect("the slot's type");
    assert_eq!(verify(&good), Ok(()));
    let fault = |change: &dyn Fn(&mut Graph)| {
        let mut graph = good.clone();
        change(&mut graph);
        verify(&graph).err().unwrap_or_default().join("; ")
    };
    let missing = tg::ir::ValueId(99);
    assert_eq!(
        fault(&|g| g.set_after(NodeId(1), &[NodeId(2)])),
        "n1 (`exp`) waits for n2, which does not precede it"
    );
    assert!(fault(&|g| g.slots.clear()).starts_with("n0 (`read`) is ill-typed"));
    assert!(
        fault(&|g| g.slots[0].ty = tg::ir::Type::scalar(tg::ir::DType::F64))
            .starts_with("n0 (`read`) has results of types")
    );
    assert_eq!(
        fault(&|g| g.regions[0].nodes = 1..2),
        "n2 (`barrier`) is outside of the nodes 1..2 of its region 0; region 0 is not contiguous: 2 nodes in 1..2"
    );
    assert_eq!(fault(&|g| g.regions[0].nodes = 0..3), "", "a read is no part of a region");
    assert_eq!(fault(&|g| g.regions[0].nodes = 1..4), "region 0 is not contiguous: 2 nodes in 1..4");
    assert_eq!(fault(&|g| g.regions[0].nodes = 1..9), "region 0 has nodes 1..9 of 4");
    assert_eq!(
        fault(&|g| g.regions[0].parent = Some(RegionId(0))),
        "region 0 is inside region 0, which is not opened before it"
    );
    assert_eq!(
        fault(&|g| g.regions.push(Region { parent: Some(RegionId(0)), nodes: 2..4, ..region.clone() })),
        "region 1 reaches out of region 0; region 1 is not contiguous: 0 nodes in 2..4"
    );
    assert!(fault(&|g| g.regions.clear()).starts_with("n1 (`exp`) is in region 0 that does not exist"));
    assert_eq!(fault(&|g| g.regions[0].keep.push(missing)), "region 0 names %99, which does not exist");
    assert_eq!(
        fault(&|g| g.outputs.push(Output {
            name: "y".into(),
            value: missing,
            origin: tg::ir::Origins::NOWHERE
        })),
        "output `y` is %99, which does not exist"
    );
    assert_eq!(fault(&|g| drop(g.names.insert(missing, "y".into()))), "%99 has a name and does not exist");
    let stamped = |role| {
        fault(&move |g| {
            g.cursor = Cursor { role, ..g.cursor };
            g.value(Barrier { kind: BarrierKind::User }, &[read]).map(|_| ()).unwrap_or_default();
        })
    };
    assert_eq!(
        stamped(Role::Backward { of: NodeId(9), call: GradCallId(0) }),
        "n4 (`barrier`) is the gradient of n9, which does not exist; n4 (`barrier`) is of gradient call 0 of 0"
    );
    assert_eq!(
        stamped(Role::Update { slot: SlotId(7) }),
        "n4 (`barrier`) updates slot 7 that does not exist"
    );
    assert_eq!(
        fault(&|g| drop(g.value(Read { slot: SlotId(0) }, &[]))),
        "n4 (`read`) reads slot 0 (`w`) after it was written"
    );
}

#[test]
fn the_graphs_of_the_examples_read_back() {
    for name in ["blocks", "digits", "convnet", "gpt"] {
        let path = format!("{}/examples/{name}.tg", env!("CARGO_MANIFEST_DIR"));
        let source = tg::engine::Source::file(&path).expect("the example is there");
        let checked = tg::engine::Engine::new().check(source, &tg::engine::CompileOptions::default());
        let wrong: Vec<_> = checked.diagnostics.iter().filter(|d| d.is_error()).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        let graphs = checked.graphs.iter().map(|(_, graph)| graph);
        let lowered = checked.plans.iter().map(|plan| &plan.graph);
        let mut count = 0;
        for graph in graphs.chain(lowered) {
            assert_eq!(verify(graph), Ok(()), "{name}");
            let printed = text::print(graph, None);
            let again = text::parse(&text::print(graph, Some(&checked.sources)));
            let again = again.unwrap_or_else(|errors| panic!("{name}: {errors:#?}"));
            assert_eq!(text::print(&again, None), printed, "{name}");
            count += 1;
        }
        assert!(count >= 2, "{name} has a graph, and a plan of it");
    }
}
