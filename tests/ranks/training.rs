//! Data-parallel training by hand: any number of ranks, each with its part of the batch, gives what
//! one rank gives with the whole batch.

use tg::{Engine, Session, Source, Tensor};

use super::support::{LIMIT, compile, numbers, on_ranks};

const ROWS: usize = 12;
const STEPS: usize = 20;

fn program(dtype: &str) -> String {
    format!(
        "use nn
         use optim
         model Net {{
           let a = nn.Linear(6, 16)
           let b = nn.Linear(16, 3)
           fn forward(x) = b(tanh(a(x)))
         }}
         let net = Net() in {dtype}
         let opt = optim.adamw(net, lr: 0.01)
         step train(x: {dtype}[B, 6], y: {dtype}[B, 3]) {{
           let l = mean(square(net(x) - y))
           let g = all_reduce(grad(l, net), mean: true)
           update net with opt, optim.clip(g, 0.5)
           return all_reduce(l, mean: true)
         }}"
    )
}

fn noise(salt: usize, len: usize) -> Vec<f64> {
    (0..len).map(|k| ((salt * 131 + k * 17) as f64 * 0.37).sin()).collect()
}

/// Losses and parameters after the last step, on every rank.
fn train(world: u32, dtype: &str) -> Vec<(Vec<f64>, Vec<f64>)> {
    let program = compile(world, &program(dtype));
    let each = ROWS / world as usize;
    on_ranks(&program, |session: &mut Session, rank| {
        let part = |values: Vec<f64>, width: usize| -> tg::Value {
            let start = rank as usize * each * width;
            let mine = &values[start..start + each * width];
            let tensor = if dtype == "f64" {
                Tensor::try_from_slice(&[each, width], mine)
            } else {
                let mine: Vec<f32> = mine.iter().map(|&x| x as f32).collect();
                Tensor::try_from_slice(&[each, width], &mine)
            };
            tensor.expect("the rows fit").into()
        };
        let losses = (0..STEPS).map(|step| {
            let args = [part(noise(step, ROWS * 6), 6), part(noise(step + 100, ROWS * 3), 3)];
            let loss = session.call("train", &args).unwrap_or_else(|error| panic!("{error}"));
            loss.as_f64().expect("a loss")
        });
        let losses: Vec<f64> = losses.collect();
        let parameters = session.parameters("net").unwrap_or_else(|error| panic!("{error}"));
        let values = parameters.iter().flat_map(|p| {
            let value = session.get(&p.name).unwrap_or_else(|error| panic!("{error}"));
            numbers(value.as_tensor().expect("a tensor"))
        });
        (losses, values.collect())
    })
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    let norm: f64 = b.iter().map(|y| y * y).sum();
    (difference / norm).sqrt()
}

#[test]
fn losses_and_parameters_are_those_of_one_rank() {
    for dtype in ["f32", "f64"] {
        let one = train(1, dtype);
        let (losses, parameters) = &one[0];
        assert!(losses[STEPS - 1] < losses[0]);
        for world in [2, 3, 4] {
            let ranks = train(world, dtype);
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
