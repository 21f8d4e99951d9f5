//! Random masks: which are kept, and that computing again draws the same.

use tg::plan::{BufferKind, Plan};

use super::support::*;

#[test]
fn masks_in_regions_need_no_word() {
    let checked = check("masks_in_regions");
    assert!(!codes(&checked).contains(&"TG0304"), "{:?}", checked.diagnostics);
}

#[test]
fn masks_of_all_layers_are_named_and_drawn_again() {
    let checked = check("masks");
    let d = find(&checked, "TG0304");
    assert_eq!(at(&checked, d.primary.span), "nn.dropout(relu(l(x)), 0.1)");
    assert!(d.primary.text.contains("bool[4096, 128], 512.0 KiB"), "{}", d.primary.text);
    let after = fixed("masks", &[], d);
    // No mask is kept any more: none is alive where the peak is.
    let plan = &after.plans[0];
    let kept = plan.schedule_graph.buffer_ids().filter(|b| {
        let info = &plan.buffers[b.0 as usize];
        info.kind == BufferKind::Activations && plan.graph.ty(info.value).dtype().name() == "bool"
    });
    assert_eq!(kept.count(), 0);
}

#[test]
fn masks_are_the_same_however_much_is_computed_again() {
    // Every draw of the step names a key: computing it again may repeat one, never make a new one.
    let keys = |plan: &Plan| {
        let draws = plan.graph.nodes().filter(|n| n.op().name() == "random");
        draws.map(|n| format!("{:?}", n.op())).collect::<std::collections::BTreeSet<_>>()
    };
    let plain = check_set("budget", &[("BUDGET", "67108864")]);
    let expected = keys(&plain.plans[0]);
    assert_eq!(expected.len(), 4, "{expected:?}");
    let mut again = 0;
    for budget in ["25165824", "20971520", "16777216"] {
        let checked = check_set("budget", &[("BUDGET", budget)]);
        let plan = &checked.plans[0];
        assert_eq!(keys(plan), expected, "{budget}");
        again += plan.graph.nodes().filter(|n| n.op().name() == "random").count() - expected.len();
    }
    assert!(again > 0, "no budget was low enough to draw masks again");
}

/// Masks of a region are drawn when its gradient is there, in every legal order: none is kept from the forward
/// pass on. With the sizes of https://github.com/jax-ml/jax/issues/17982: 2^27 numbers in each layer.
#[test]
fn masks_in_regions_are_drawn_late() {
    let is_mask = |plan: &Plan| {
        let kept = plan.buffers.iter().filter(|b| {
            let is_bool = plan.graph.ty(b.value).dtype().name() == "bool";
            is_bool && b.kind == BufferKind::Activations
        });
        kept.map(|b| b.dense_bytes).collect::<Vec<_>>()
    };
    let rows = [("ROWS", "1048576")];
    let plain = check_set("masks", &rows);
    let d = find(&plain, "TG0304");
    assert!(d.message.contains("896.0 MiB"), "{}", d.message);
    assert!(d.primary.text.contains("7 x bool[1048576, 128], 128.0 MiB each"), "{}", d.primary.text);
    // A byte for each number, where the words that were drawn would be four.
    assert_eq!(is_mask(plan(&plain, "train")), [128 * MIB; 8]);
    assert!(savings(d).saves_bytes() >= 7 * 128 * MIB, "{:?}", savings(d));
    let regions = check_set("masks_in_regions", &rows);
    let regions = plan(&regions, "train");
    assert_eq!(is_mask(regions), [0_u64; 0]);
    // All that another order may have more is the activation of one layer.
    assert!(worst(regions) - regions.peak_bytes() <= 512 * MIB, "{}", worst(regions));
    assert!(worst(plan(&plain, "train")) > 2 * worst(regions));
}

#[test]
fn masks_in_regions_are_those_of_the_plain_program() {
    let calls = "\nfor i in 0..3 {\n  train(sin(reshape(f32(arange(2048)), [16, 128])))\n}\n";
    let with = text("masks_in_regions").replace("ROWS = 4096", "ROWS = 16") + calls;
    let without = with.replace("checkpoint < ", "(").replace(" >", ")");
    let names = ["net.layers.0.w", "net.layers.3.b", "net.layers.7.w"];
    assert_eq!(values_after(&with, &names), values_after(&without, &names));
}
