//! `tg plan --html`: the picture of a plan, with the worst legal order beside the chosen one.

use std::sync::Arc;

use super::steps::title;
use crate::{
    engine::Checked,
    plan::Plan,
    report::picture::{Order, Step, page},
};

/// The page. `worst` has the plans of the worst orders, one for each of `plans`, or none.
pub fn html(file: &str, plans: &[Arc<Plan>], worst: &[Arc<Plan>], checked: &Checked) -> String {
    let sources = &checked.sources;
    let steps: Vec<Step> = plans
        .iter()
        .enumerate()
        .map(|(k, plan)| {
            let mut orders = vec![Order::new("chosen", plan, sources)];
            orders.extend(worst.get(k).map(|plan| Order::new("worst legal", plan, sources)));
            Step {
                name: title(plan, plans, checked),
                peak_bytes: plan.peak_bytes(),
                lower_bound_bytes: plan.lower_bound_bytes(),
                worst_legal_bytes: plan.worst_legal_bytes(),
                orders,
            }
        })
        .collect();
    page(file, &steps, sources)
}
