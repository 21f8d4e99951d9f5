//! The picture of a plan, in a real browser: it opens, draws every buffer, and answers to mouse and
//! keyboard.

mod picture_support;

use std::time::Instant;

use picture_support::Browser;
use tg::{
    engine::{Engine, Source},
    plan::BufferKind,
    report::{
        picture::{Order, Step, page},
        plan::{LiveBuffer, PlacedBuffer, PlacedOp},
    },
    source::SourceMap,
};

const PROGRAM: &str = "\
use nn
use optim
let net = nn.Linear(64, 32)
step train(x: f32[16, 64]) {
  let hidden = relu(net(x))
  let <odd> = 1
  let loss = sum(hidden * hidden)
  minimize loss over net with optim.sgd(lr: 0.1)
  return loss
}
";

/// Runs a test with a browser, or says that there is none.
fn with_browser(name: &str, test: impl FnOnce(&mut Browser)) {
    match picture_support::find() {
        Some(program) => test(&mut Browser::start(&program, name)),
        None => eprintln!("skipped: no Chromium on this machine, so `{name}` did not run"),
    }
}

fn small() -> (String, Step) {
    let text = PROGRAM.replace("  let <odd> = 1\n", "  # </script><b>\n");
    let program = Engine::new().compile(Source::text("small <&>.tg", text)).unwrap();
    let plan = program.plan("train").unwrap();
    let order = Order::new("chosen", plan, program.sources());
    let mut other = order.clone();
    other.label = "worst legal";
    let step = Step {
        name: "train".into(),
        peak_bytes: plan.peak_bytes(),
        lower_bound_bytes: plan.lower_bound_bytes(),
        worst_legal_bytes: Some(plan.peak_bytes() + 4096),
        orders: vec![order, other],
    };
    (page("small <&>.tg", std::slice::from_ref(&step), program.sources()), step)
}

#[test]
fn every_buffer_is_drawn_and_named() {
    with_browser("named", |browser| {
        let (html, step) = small();
        browser.open(&html);
        let order = &step.orders[0];
        let drawn: Vec<_> = order.buffers.iter().filter(|b| b.offset.is_some()).collect();
        assert!(drawn.len() > 3);
        assert_eq!(browser.eval("order().count"), order.buffers.len());
        assert_eq!(browser.eval("order().drawn.length"), drawn.len());
        assert_eq!(browser.eval("document.querySelector('h1').textContent"), "small <&>.tg");
        // The curve that the page adds up is the plan's: the most alive is the live peak.
        let most = order.persistent_bytes + live_peak(order);
        assert_eq!(browser.eval("Math.max(...order().total)"), most);
        // Under the middle of each buffer on the screen, that buffer's name is shown.
        for (index, placed) in order.buffers.iter().enumerate().filter(|(_, b)| b.offset.is_some()) {
            let at = browser.eval(&format!("placeOf({index})"));
            browser.mouse("mouseMoved", at["x"].as_f64().unwrap(), at["y"].as_f64().unwrap());
            let details = browser.text("details");
            assert!(details.starts_with(&placed.buffer.name), "{details}");
            assert!(details.contains(&format!("{} bytes", placed.buffer.bytes)), "{details}");
            assert!(details.contains(&placed.buffer.kept_by), "{details}");
        }
    });
}

fn live_peak(order: &Order) -> u64 {
    (0..order.ops.len())
        .map(|at| {
            let live = order.buffers.iter().filter(|b| b.offset.is_some() && b.positions.contains(&at));
            live.map(|b| b.buffer.bytes).sum::<u64>() + order.ops[at].workspace_bytes
        })
        .max()
        .unwrap_or(0)
}

#[test]
fn mouse_keyboard_and_search() {
    with_browser("keys", |browser| {
        let (html, step) = small();
        browser.open(&html);
        let order = &step.orders[0];
        assert!(browser.text("figures").contains("in every legal order at most"));
        assert!(browser.text("details").starts_with("The peak"));
        // The list shows what is alive at the peak, largest first.
        let alive = order.buffers.iter().filter(|b| b.positions.contains(&order.peak_position)).count();
        assert_eq!(browser.text("list-title"), format!("Alive at the peak: {alive}"));
        // A click holds a buffer after the pointer has left.
        let index = order.buffers.iter().position(|b| b.buffer.name == "hidden").unwrap();
        let at = browser.eval(&format!("placeOf({index})"));
        let (x, y) = (at["x"].as_f64().unwrap(), at["y"].as_f64().unwrap());
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            browser.mouse(kind, x, y);
        }
        browser.mouse("mouseMoved", 5.0, 5.0);
        let details = browser.text("details");
        assert!(details.starts_with("hidden") && details.contains("let hidden = relu(net(x))"), "{details}");
        // Zoom and back.
        browser.eval("document.getElementById('map').focus()");
        browser.key("+");
        assert!(browser.eval("state.to - state.from").as_f64().unwrap() < order.ops.len() as f64);
        browser.key("Escape");
        assert_eq!(browser.eval("state.to - state.from").as_f64().unwrap(), order.ops.len() as f64);
        // The arrow keys visit every buffer of the arena once.
        let drawn = order.buffers.iter().filter(|b| b.offset.is_some()).count();
        let mut visited = std::collections::BTreeSet::new();
        for _ in 0..drawn {
            browser.key("ArrowRight");
            visited.insert(browser.eval("state.held").as_u64().unwrap());
        }
        assert_eq!(visited.len(), drawn);
        // The other order.
        browser.key("w");
        assert_eq!(browser.eval("document.getElementById('order').selectedOptions[0].text"), "worst legal");
        // Finding by name.
        browser.key("/");
        for key in ["h", "i", "d", "d"] {
            browser.key(key);
        }
        let found = order.buffers.iter().filter(|b| b.buffer.name.contains("hidd")).count();
        assert_eq!(browser.text("list-title"), format!("{found} found"));
        browser.eval("document.querySelector('#list button').click()");
        assert!(browser.text("details").starts_with("hidden"));
        assert_eq!(
            browser.eval("document.querySelector('#list button').getAttribute('aria-current')"),
            "true"
        );
        // The list says of which line a buffer is: names alone are not unique.
        assert!(browser.text("list").contains("line "), "{}", browser.text("list"));
    });
}

/// Without a buffer chosen, the kinds of what is alive at the peak are listed, largest first, and add up.
#[test]
fn the_peak_is_split_by_kind() {
    with_browser("kinds", |browser| {
        let (html, step) = small();
        browser.open(&html);
        let sum =
            "(() => { const o = order(); return o.byKind.reduce((sum, kind) => sum + kind[o.peak], 0); })()";
        let order = &step.orders[0];
        assert_eq!(browser.eval(sum), order.persistent_bytes + live_peak(order));
        let shown = browser.eval("document.querySelectorAll('#details .kinds dt').length").as_u64().unwrap();
        let there = browser.eval("order().byKind.filter((kind) => kind[order().peak] > 0).length");
        assert!(shown > 1 && there == shown, "{shown} {there}");
    });
}

/// On a narrow window nothing lies over anything else.
#[test]
fn a_narrow_window_has_all_parts_below_each_other() {
    with_browser("narrow", |browser| {
        let (html, _) = small();
        browser.resize(480, 900);
        browser.open(&html);
        let tops = "['curve', 'legend', 'address', 'map', 'time', 'details', 'list'].map((id) => { const box = document.getElementById(id).getBoundingClientRect(); return [box.top, box.bottom]; })";
        let boxes: Vec<(f64, f64)> = serde_json::from_value(browser.eval(tops)).unwrap();
        for pair in boxes.windows(2) {
            assert!(pair[0].1 <= pair[1].0 + 0.5, "{boxes:?}");
        }
        // Nor in a low one, where the legend takes two lines.
        for (width, height) in [(1000, 500), (820, 300)] {
            browser.resize(width, height);
            let boxes: Vec<(f64, f64)> =
                serde_json::from_value(browser.eval(&tops.replace(", 'details', 'list'", ""))).unwrap();
            assert!(boxes.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 0.5), "{width}x{height}: {boxes:?}");
        }
    });
}

/// Both colour schemes are readable: text and paper differ enough (WCAG's 4.5 to 1).
#[test]
fn light_and_dark() {
    with_browser("dark", |browser| {
        let (html, _) = small();
        browser.open(&html);
        let contrast = "(() => {
            const light = (c) => { const [r, g, b] = c.match(/\\d+/g).slice(0, 3).map((v) => v / 255)
                .map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                return .2126 * r + .7152 * g + .0722 * b; };
            const style = getComputedStyle(document.body);
            const [a, b] = [light(style.color), light(style.backgroundColor)];
            return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); })()";
        let mut pictures = Vec::new();
        for dark in [false, true] {
            browser.dark(dark);
            assert!(browser.eval(contrast).as_f64().unwrap() > 4.5, "dark: {dark}");
            pictures.push(browser.screenshot());
        }
        assert_ne!(pictures[0], pictures[1]);
    });
}

#[test]
fn a_hundred_thousand_buffers_stay_usable() {
    with_browser("large", |browser| {
        let count = 100_000;
        let buffer = |i: usize| PlacedBuffer {
            buffer: LiveBuffer {
                name: format!("value {i}"),
                bytes: 4096,
                ty: None,
                kind: BufferKind::ALL[i % BufferKind::ALL.len()],
                place: None,
                kept_by: "matmul".into(),
                kept_by_place: None,
                from: i,
                to: i + 40,
            },
            positions: i..=(i + 40).min(count - 1),
            offset: Some((i % 41) as u64 * 4096),
        };
        let op = PlacedOp { name: "matmul".into(), place: None, workspace_bytes: 0, workspace_offset: None };
        let order = Order {
            label: "chosen",
            persistent_bytes: 0,
            arena_bytes: 41 * 4096,
            peak_position: 50,
            ops: vec![op; count],
            buffers: (0..count).map(buffer).collect(),
        };
        let step = Step {
            name: "large".into(),
            peak_bytes: 41 * 4096,
            lower_bound_bytes: 41 * 4096,
            worst_legal_bytes: None,
            orders: vec![order],
        };
        let html = page("large.tg", &[step], &SourceMap::new());
        let start = Instant::now();
        browser.open(&html);
        assert_eq!(browser.eval("order().drawn.length"), count);
        let opened = start.elapsed();
        let drawing = "(() => { const start = performance.now(); drawCurve(); drawMap(); return performance.now() - start; })()";
        let drawing = browser.eval(drawing).as_f64().unwrap();
        let hovering = "(() => { const start = performance.now(); bufferAt(600, 100); return performance.now() - start; })()";
        let hovering = browser.eval(hovering).as_f64().unwrap();
        println!("opened in {opened:.1?}, drawn in {drawing:.0} ms, pointed at in {hovering:.1} ms");
        // Far above what it takes, so that a busy machine passes; a picture that hangs does not.
        assert!(opened.as_secs() < 30 && drawing < 5000.0 && hovering < 500.0);
        browser.eval("document.getElementById('find').value = 'value 77777'; showList()");
        assert_eq!(browser.text("list-title"), "1 found");
        browser.eval("document.querySelector('#list button').click()");
        browser.eval("zoom(0.001, 77800, 41 * 2048)");
        let at = browser.eval("placeOf(77777)");
        browser.mouse("mouseMoved", at["x"].as_f64().unwrap(), at["y"].as_f64().unwrap());
        assert!(browser.text("details").starts_with("value 77777"));
    });
}
