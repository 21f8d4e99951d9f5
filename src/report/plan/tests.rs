//! A plan made by hand, so that every figure of its report can be checked by hand.

use std::sync::Arc;

use super::*;
use crate::{
    ir::{Cursor, DType, Graph, Input, Origin, Output, Role, Slot, SlotId, SlotKind},
    ops::{self, Opaque},
    plan::{Home, Instruction, Kernel, PlanBuffer, Schedule, Target},
    report::Style,
    schedule::{BufferFlags, GraphBuilder},
};

const MIB: u64 = 1 << 20;
const TEXT: &str = "use nn\nlet h = nn.f(x)\nlet y = g(h)\nminimize y\nreturn y\n";

/// input x (4 MiB) → f → h (8 MiB, workspace 2 MiB) → g → y (8 MiB, over h)
///                      └──────────────────────────→ b → grad of w (2 MiB) → update w (1 MiB persistent)
fn example() -> (Plan, SourceMap) {
    let mut sources = SourceMap::new();
    let main = sources.add("a.tg", TEXT);
    let library = sources.add_library("std/nn.tg", "fn f(x) = x\n");
    let mut graph = Graph::new();
    let mib = |n: usize| Type::new(DType::F32, [n, 1 << 18]).unwrap();
    graph.inputs.push(Input { name: "x".into(), ty: mib(4) });
    graph.slots.push(Slot { name: "net.w".into(), ty: mib(1), kind: SlotKind::Param { trainable: true } });
    let at = |graph: &mut Graph, needle: &str| {
        let start = TEXT.find(needle).unwrap();
        let span = Span::new(main, start..start + needle.len());
        graph.cursor.origin = graph.origins.intern(Origin { span, parent: None, iteration: None });
    };
    let opaque = |name: &str, ty: Type| Opaque {
        name: name.into(),
        results: vec![ty],
        overwrites: Vec::new(),
        workspace: 0,
        host: None,
    };
    let x = graph.value(ops::Input { index: 0 }, &[]).unwrap();
    let w = graph.value(ops::Read { slot: SlotId(0) }, &[]).unwrap();
    at(&mut graph, "nn.f(x)");
    // A library line, called from the program's second line.
    let call = graph.cursor.origin;
    let inside = Span::new(library, 10..11);
    graph.cursor.origin = graph.origins.intern(Origin { span: inside, parent: Some(call), iteration: None });
    let f = graph.push(opaque("f", mib(8)), &[x, w]).unwrap();
    at(&mut graph, "g(h)");
    let g = graph.push(opaque("g", mib(8)), &[graph.node(f).result(0)]).unwrap();
    at(&mut graph, "minimize y");
    let call = crate::ir::GradCallId(0);
    graph.cursor.role = Role::Backward { of: f, call };
    let b = graph.push(opaque("b", mib(2)), &[graph.node(f).result(0)]).unwrap();
    graph.cursor.role = Role::Update { slot: SlotId(0) };
    let u = graph.push(opaque("sgd", mib(1)), &[w, graph.node(b).result(0)]).unwrap();
    graph.cursor = Cursor { role: Role::Forward, ..graph.cursor };
    at(&mut graph, "return y");
    let (h, y, dw) = (graph.node(f).result(0), graph.node(g).result(0), graph.node(b).result(0));
    let origin = graph.cursor.origin;
    graph.outputs.push(Output { name: "y".into(), value: y, origin });
    graph.names.insert(h, Arc::from("h"));
    graph.names.insert(y, Arc::from("y"));

    let mut builder = GraphBuilder::new();
    let flags = BufferFlags::default();
    let bw = builder.buffer(MIB, BufferFlags { persistent: true, ..flags });
    let bx = builder.buffer(4 * MIB, BufferFlags { input: true, ..flags });
    let bh = builder.buffer(8 * MIB, flags);
    let by = builder.buffer(8 * MIB, BufferFlags { output: true, ..flags });
    let bdw = builder.buffer(2 * MIB, flags);
    let of = builder.op(&[bx, bw], &[bh], &[], &[], 2 * MIB);
    let ob = builder.op(&[bh], &[bdw], &[], &[], 0);
    let og = builder.op(&[bh], &[by], &[], &[(by, bh)], 0);
    let ou = builder.op(&[bw, bdw], &[], &[], &[], 0);
    let buffer = |home, kind, bytes, value| PlanBuffer { home, kind, dense_bytes: bytes, value };
    let plan = Plan {
        name: "train".into(),
        target: Target::Cpu,
        schedule_graph: builder.finish(),
        kernels: vec![Kernel::Nothing; 4],
        buffers: vec![
            buffer(Home::Slot(SlotId(0)), BufferKind::Params, MIB, w),
            buffer(Home::Input(0), BufferKind::Inputs, 4 * MIB, x),
            buffer(Home::Arena, BufferKind::Activations, 8 * MIB, h),
            buffer(Home::Arena, BufferKind::Outputs, 8 * MIB, y),
            buffer(Home::Arena, BufferKind::Grads, 2 * MIB, dw),
        ],
        op_nodes: vec![f, b, g, u],
        schedule: Schedule {
            order: vec![of, ob, og, ou],
            overwrites: vec![None, None, None, Some(bh), None],
            offsets: vec![None, Some(0), Some(4 * MIB), Some(4 * MIB), Some(0)],
            workspace_offsets: vec![Some(12 * MIB), None, None, None],
            // One MiB more than is alive at once.
            arena_bytes: 15 * MIB,
            live_peak_bytes: 14 * MIB,
            peak_position: 0,
            lower_bound_bytes: 14 * MIB,
            bound: Default::default(),
            found_by: "list",
        },
        worst: None,
        instructions: vec![
            Instruction::Exec(of),
            Instruction::Free(bx),
            Instruction::Exec(ob),
            Instruction::Exec(og),
            Instruction::Exec(ou),
            Instruction::Free(bdw),
        ],
        outputs: Vec::new(),
        persistent_bytes: MIB,
        views: Vec::new(),
        arena_bytes_without_copies: None,
        commits: Vec::new(),
        flops: 0.0,
        recomputed_flops: 0.0,
        graph: Arc::new(graph),
    };
    (plan, sources)
}

/// See `tests/report.rs`.
fn snapshot(name: &str, actual: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/report").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "the output differs from {}", path.display());
}

#[test]
fn figures() {
    let (plan, sources) = example();
    let r = report(&plan, &sources);
    assert_eq!((r.peak_bytes, r.lower_bound_bytes), (16 * MIB, 15 * MIB));
    // f: x, h, workspace; b: h, dw; g: y over h, dw; update: y, dw; and w all along.
    assert_eq!(r.curve, [15 * MIB, 11 * MIB, 11 * MIB, 11 * MIB]);
    let kinds: Vec<_> = r.by_kind.iter().filter(|(_, b)| *b > 0).map(|&(k, b)| (k, b / MIB)).collect();
    assert_eq!(
        kinds,
        [("params", 1), ("activations", 8), ("temporaries", 2), ("inputs", 4), ("fragmentation", 1)]
    );
    assert_eq!(r.by_kind.iter().map(|(_, b)| b).sum::<u64>(), r.peak_bytes);
    let live: Vec<_> =
        r.live_at_peak.iter().map(|b| (b.name.as_str(), b.bytes / MIB, b.kept_by.as_str())).collect();
    assert_eq!(live, [("h", 8, "g"), ("x", 4, "f"), ("workspace of f", 2, "f"), ("net.w", 1, "state")]);
    // The line of the call, not that of the library.
    let lines: Vec<_> = r.live_at_peak.iter().map(|b| b.place.map(|p| p.at.line)).collect();
    assert_eq!(lines, [Some(2), None, Some(2), None]);
    assert_eq!(r.live_at_peak[0].kept_by_place.map(|p| p.at.line), Some(3));
    // x is freed by the second instruction, so it lives during the first one only.
    let ranges: Vec<_> = r.live_at_peak.iter().map(|b| (b.from, b.to)).collect();
    assert_eq!(ranges, [(0, 2), (0, 0), (0, 0), (0, 4)]);
    assert_eq!((r.peak_at.op.as_str(), r.peak_at.instruction), ("f", 0));
}

#[test]
fn a_gradient_has_the_name_of_its_parameter_and_an_output_its_return() {
    let (mut plan, sources) = example();
    plan.schedule.peak_position = 2;
    // A `let` in the library names it, too.
    let gradient = plan.buffers[4].value;
    Arc::make_mut(&mut plan.graph).names.insert(gradient, "d".into());
    let r = report(&plan, &sources);
    let live: Vec<_> = r
        .live_at_peak
        .iter()
        .map(|b| (b.name.as_str(), b.kept_by.as_str(), b.kept_by_place.map(|p| p.at.line)))
        .collect();
    // h is overwritten by y, so its bytes are y's.
    assert_eq!(
        live,
        [("y", "output", Some(5)), ("gradient of net.w", "sgd", Some(4)), ("net.w", "state", None)]
    );
}

#[test]
fn terminal_form() {
    let (mut plan, sources) = example();
    let r = report(&plan, &sources);
    let main = Some(FileId(0));
    assert!(!render(&r, main, &sources, Style::PLAIN).contains("worst"));
    plan.bound_every_order();
    let r = report(&plan, &sources);
    let text = render(&r, main, &sources, Style::PLAIN);
    snapshot("plan.txt", &text);
    let ascii = render(&r, main, &sources, Style::ASCII);
    snapshot("plan_ascii.txt", &ascii);
    assert!(ascii.is_ascii());
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn json_form() {
    let (mut plan, sources) = example();
    plan.bound_every_order();
    let short = json(&report(&plan, &sources), "cpu", &[("B".into(), 64)], 0, &[], &sources);
    assert!(short["ops"].is_null() && short["order"].is_null());
    let mut text = String::new();
    full(&short, &plan, &sources, &mut text);
    let value = serde_json::from_str(&text).unwrap();
    let text = serde_json::to_string_pretty(&json_file("a.tg", vec![value])).unwrap() + "\n";
    snapshot("plan.json", &text);
}

/// Curves of any length fit the width, and the peak is in them.
#[test]
fn long_and_flat_curves() {
    let (plan, sources) = example();
    let mut r = report(&plan, &sources);
    for (length, peak) in [(1, 0), (50, 49), (5000, 2500), (100_000, 99_999), (3, 1)] {
        r.curve = (0..length).map(|i| if i == peak { 1 << 40 } else { (i as u64) << 20 }).collect();
        r.peak_at.position = peak;
        let text = render(&r, None, &sources, Style::PLAIN);
        let top = text.lines().find(|l| l.contains("1048576.0")).unwrap();
        assert!(top.contains('█') && top.chars().count() <= 80, "{text}");
        let marker = text.lines().find(|l| l.contains('▲')).unwrap();
        assert!(marker.chars().count() <= 80, "{text}");
        let column = |line: &str, c: char| line.chars().position(|x| x == c);
        assert_eq!(column(marker, '▲'), column(top, '█'), "{text}");
    }
    r.curve = vec![0; 10];
    assert!(!render(&r, None, &sources, Style::PLAIN).contains('█'));
    r.curve.clear();
    assert!(!render(&r, None, &sources, Style::PLAIN).contains('▲'));
}

/// Buffers of many blocks are one row; what is smaller than the largest rows is summed up.
#[test]
fn buffers_alike_share_a_row() {
    let (plan, sources) = example();
    let mut r = report(&plan, &sources);
    let weight = r.live_at_peak.pop().unwrap();
    for k in 0..64 {
        r.live_at_peak.push(LiveBuffer { name: format!("net.blocks.{k}.conv1.w"), ..weight.clone() });
    }
    for k in 0..20 {
        r.live_at_peak.push(LiveBuffer { name: format!("head{k}.w"), ..weight.clone() });
    }
    r.by_kind[0].1 = 84 * MIB;
    let text = render(&r, None, &sources, Style::PLAIN);
    let rows: Vec<&str> =
        text.lines().map(str::trim).filter(|l| l.contains(".w") || l.contains("more")).collect();
    assert_eq!(rows.len(), 9, "{text}");
    assert_eq!(rows[0], "64.0    64 x net.blocks.*.conv1.w  f32[1, 262144]");
    assert_eq!(rows[1], "1.0    head0.w                    f32[1, 262144]");
    assert_eq!(rows[8], "13.0    and 13 more");
}
