//! Data-parallel training by hand: any number of ranks, each with its part of the batch, gives what
//! one rank gives with the whole batch.

use tg::{Engine, Source};

use super::support::{LIMIT, compile, distance, flat, loss, noise, on_ranks, parameters, rows};

const ROWS: usize = 12;
pub const STEPS: usize = 20;

/// Gradients that are made equal on all ranks by a collective.
const BY_HAND: &str = "let g = all_reduce(grad(l, net), mean: true)";

/// A step whose gradients are made by `grads`: statements that bind `g`.
pub fn program(dtype: &str, grads: &str) -> String {
    format!(
        "use nn
         use optim
         use hooks
         model Net {{
           let a = nn.Linear(6, 16)
           let b = nn.Linear(16, 3)
           fn forward(x) = b(tanh(a(x)))
         }}
         let net = Net() in {dtype}
         let opt = optim.adamw(net, lr: 0.01)
         step train(x: {dtype}[B, 6], y: {dtype}[B, 3]) {{
           let l = mean(square(net(x) - y))
           {grads}
           update net with opt, optim.clip(g, 0.5)
           return all_reduce(l, mean: true)
         }}"
    )
}

/// Losses and parameters after the last step, on every rank.
pub fn train(world: u32, dtype: &str, grads: &str) -> Vec<(Vec<f64>, Vec<f64>)> {
    let program = compile(world, &program(dtype, grads));
    let each = ROWS / world as usize;
    on_ranks(&program, |session, rank| {
        let part = |salt, width| {
            let low = rank as usize * each;
            rows(&noise(salt, ROWS * width)[low * width..(low + each) * width], dtype, width)
        };
        let losses = (0..STEPS).map(|step| loss(session, &[part(step, 6), part(step + 100, 3)])).collect();
        (losses, flat(&parameters(session)))
    })
}

#[test]
fn losses_and_parameters_are_those_of_one_rank() {
    for dtype in ["f32", "f64"] {
        let one = train(1, dtype, BY_HAND);
        let (losses, parameters) = &one[0];
        assert!(losses[STEPS - 1] < losses[0]);
        for world in [2, 3, 4] {
            let ranks = train(world, dtype, BY_HAND);
            assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ in their bits");
            for (loss, expected) in ranks[0].0.iter().zip(losses) {
                assert!((loss - expected).abs() <= 1e-5 * expected.abs(), "{world} ranks: {loss} {expected}");
            }
            let off = distance(&ranks[0].1, parameters);
            let allowed = if dtype == "f64" { 1e-9 } else { 1e-4 };
            assert!(off <= allowed, "{world} ranks in {dtype}: parameters are {off:e} off");
        }
    }
}

/// The example prints the same losses for every number of ranks. Each rank's high-water mark is its
/// plan's: sessions hold that in debug builds, as this is.
#[test]
fn the_example_gives_the_same_on_every_number_of_ranks() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ranks.tg");
    let losses = |world| {
        let engine = Engine::new().with_world(world).with_rank_limit(LIMIT);
        let source = Source::file(path).unwrap_or_else(|error| panic!("{error}"));
        let program = engine.compile(source).unwrap_or_else(|error| panic!("{error}"));
        let ranks = on_ranks(&program, |session, _| {
            session.run().unwrap_or_else(|error| panic!("{error}"));
            let losses = session.get("losses").unwrap_or_else(|error| panic!("{error}"));
            losses.items().expect("a list").iter().filter_map(tg::Value::as_f64).collect::<Vec<f64>>()
        });
        assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]));
        ranks.into_iter().next().expect("rank 0")
    };
    let one = losses(1);
    assert_eq!(one.len(), STEPS);
    for world in [2, 3, 4] {
        for (loss, expected) in losses(world).iter().zip(&one) {
            assert!((loss - expected).abs() <= 1e-5 * expected, "{world} ranks: {loss}, alone {expected}");
        }
    }
}
