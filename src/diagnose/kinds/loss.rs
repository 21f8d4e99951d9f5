//! Kept by a loss: logits that are worked out for all rows at once, though a loss is a sum over rows.

use super::with_peak;
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        tree::Tree,
    },
    diagnostic::{Diagnostic, Edit, Severity},
    ops::Op,
    report::Bytes,
    source::Span,
    syntax::{
        ast::{BinaryOp, ExprId, ExprKind, StmtId, StmtKind},
        children::Child,
    },
};

/// Other code is advised only where it saves a good part of the peak.
const ADVICE: f64 = 0.1;
/// How many parts are tried.
const PARTS: [usize; 2] = [8, 4];
/// Names in the text that is written.
const NAMES: [&str; 2] = ["part", "parts"];

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    losses(facts.tree).iter().filter_map(|loss| of_loss(facts, loss)).collect()
}

/// The changes that work the logits of a loss out in parts, for contracts.
pub fn in_parts(facts: &Facts<'_>) -> Vec<Candidate> {
    losses(facts.tree).iter().flat_map(|loss| candidates(facts, loss)).collect()
}

/// `loss.cross_entropy(f32(left @ right), labels)`, with the product in the call or in a `let`
/// before it.
struct Loss {
    call: ExprId,
    logits: ExprId,
    product: ExprId,
    left: ExprId,
    right: ExprId,
    labels: ExprId,
    /// The `let` of the product, and its name.
    bound: Option<(StmtId, String)>,
}

fn losses(tree: &Tree<'_>) -> Vec<Loss> {
    let calls = tree.expressions(|e| matches!(e, ExprKind::Call { .. }));
    calls.into_iter().filter_map(|call| loss(tree, call)).collect()
}

fn loss(tree: &Tree<'_>, call: ExprId) -> Option<Loss> {
    let ExprKind::Call { callee, args } = &tree.ast.expr(call).kind else { return None };
    let [logits, labels] = args.as_slice() else { return None };
    // The mean over rows: that of parts of one size is the mean of their means.
    let is_mean = tree.text(tree.ast.expr(*callee).span) == "loss.cross_entropy";
    let is_plain = logits.name.is_none() && labels.name.is_none() && is_name(tree, labels.value);
    if !is_mean || !is_plain {
        return None;
    }
    let inner = match &tree.ast.expr(logits.value).kind {
        ExprKind::Call { callee, args } if tree.text(tree.ast.expr(*callee).span) == "f32" => {
            args.first()?.value
        }
        _ => logits.value,
    };
    let (product, bound) = match &tree.ast.expr(inner).kind {
        ExprKind::Name(name) => {
            let stmt = tree.binding_of(call, name)?;
            let StmtKind::Let { names, value, .. } = &tree.ast.stmt(stmt).kind else { return None };
            let is_here = tree.parent(Child::Stmt(stmt)) == tree.parent(tree.statement_of(call)?);
            (names.len() == 1 && is_here).then_some((*value, Some((stmt, name.to_string()))))?
        }
        _ => (inner, None),
    };
    let ExprKind::Binary { op: BinaryOp::MatMul, left, right, .. } = tree.ast.expr(product).kind else {
        return None;
    };
    let found = Loss { call, logits: logits.value, product, left, right, labels: labels.value, bound };
    (is_name(tree, left) && found.is_unchanged(tree)).then_some(found)
}

fn is_name(tree: &Tree<'_>, expr: ExprId) -> bool {
    matches!(tree.ast.expr(expr).kind, ExprKind::Name(_))
}

impl Loss {
    /// Whether nothing is assigned between the product and the loss, and the names that are written
    /// are free.
    fn is_unchanged(&self, tree: &Tree<'_>) -> bool {
        let (from, to) = (tree.ast.expr(self.product).span, tree.ast.expr(self.call).span);
        let assigned = tree.statements(|s| matches!(s, StmtKind::Assign { .. }));
        let mut between = assigned.into_iter().map(|s| tree.ast.stmt(s).span);
        let texts = [self.left, self.right, self.labels].map(|e| tree.text(tree.ast.expr(e).span));
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut words = texts.iter().flat_map(|t| t.split(|c| !is_word(c)));
        between.all(|s| s.file != to.file || s.end <= from.start || to.end <= s.start)
            && words.all(|w| !NAMES.contains(&w))
    }

    fn span(&self, tree: &Tree<'_>) -> Span {
        tree.ast.expr(self.call).span
    }
}

fn of_loss(facts: &Facts<'_>, loss: &Loss) -> Option<Finding> {
    let tree = facts.tree;
    let logits = tree.ast.expr(loss.logits).span;
    let product = tree.ast.expr(loss.product).span;
    let buffer = facts.at_peak.iter().copied().find(|&b| {
        let born = blame::blame(facts, b).born;
        born == Some(logits) || born == Some(product)
    })?;
    let rows = rows(facts, loss)?;
    let message = format!(
        "the logits of `loss.cross_entropy` are alive for all {rows} rows at once: {}",
        blame::size(facts, buffer)
    );
    let diagnostic = Diagnostic::new(Severity::Note, codes::WHOLE_LOGITS, logits, message)
        .label(format!("all rows: {}", Bytes(facts.bytes(buffer))))
        .note("the loss is a mean over rows: it is also the mean of the losses of equal parts of them, one after another")
        .note("the backward pass of a part runs right after its forward pass, so the logits of one part at a time are alive");
    let mut finding = Finding::new(diagnostic, facts.bytes(buffer), Accept::PeakFalls(ADVICE))
        .candidates(candidates(facts, loss));
    if product != logits {
        finding = finding.label(Some(product), "made here");
    }
    Some(with_peak(facts, finding))
}

/// Rows of the product, where it is a matrix of the step that is looked at.
fn rows(facts: &Facts<'_>, loss: &Loss) -> Option<usize> {
    let span = facts.tree.ast.expr(loss.product).span;
    let product = facts
        .written
        .nodes()
        .find(|n| matches!(n.op(), Op::MatMul(_)) && facts.written.origins.get(n.origin()).span == span)?;
    match facts.written.ty(product.result(0)).shape() {
        &[rows, _] => Some(rows),
        _ => None,
    }
}

fn candidates(facts: &Facts<'_>, loss: &Loss) -> Vec<Candidate> {
    let Some(rows) = rows(facts, loss) else { return Vec::new() };
    let parts = PARTS.into_iter().filter(|n| rows > *n && rows.is_multiple_of(*n));
    parts
        .flat_map(|n| ["", "checkpoint < "].map(|open| candidate(facts.tree, loss, rows / n, n, open)))
        .collect()
}

fn candidate(tree: &Tree<'_>, loss: &Loss, rows: usize, parts: usize, open: &str) -> Candidate {
    let text = |e: ExprId| tree.text(tree.ast.expr(e).span);
    let range = format!("[part * {rows}..(part + 1) * {rows}]");
    let product = format!("{}{range} @ {}", text(loss.left), text(loss.right));
    let logits = match &tree.ast.expr(loss.logits).kind {
        ExprKind::Call { .. } => format!("f32({product})"),
        _ => product,
    };
    let call = format!("loss.cross_entropy({logits}, {}{range})", text(loss.labels));
    let close = if open.is_empty() { "" } else { " >" };
    let span = loss.span(tree);
    let indent = tree.indent(span);
    let written = format!(
        "{{\n{indent}  let parts = 0.0\n{indent}  for part in 0..{parts} {{\n{indent}    parts = parts + {open}{call}{close}\n{indent}  }}\n{indent}  parts / {parts}.0\n{indent}}}"
    );
    let mut edits = vec![Edit { span, text: written }];
    if let Some((stmt, name)) = &loss.bound
        && tree.expressions(|e| matches!(e, ExprKind::Name(n) if **n == **name)).len() == 1
    {
        edits.push(tree.remove_statement(*stmt));
    }
    let how = if open.is_empty() { "" } else { ", each in a region" };
    let title = format!("take the mean of the losses of {parts} parts of {rows} rows{how}");
    Candidate::new(title, edits).rounded()
}
