//! Static allocation: height over capacity and time for the six published instances.
//!
//!     cargo bench --bench pack

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tg::schedule::pack::{Block, PackOptions, pack};

const CAPACITY: u64 = 1 << 20;

fn main() {
    println!(
        "{:<9} {:>6} {:>10} {:>13} {:>13} {:>9}",
        "instance", "blocks", "load", "height", "/ capacity", "seconds"
    );
    let mut all = Duration::ZERO;
    for name in ["A", "B", "C", "D", "E", "F"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/data/minimalloc/{name}.csv"));
        let blocks = match std::fs::read_to_string(&path) {
            Ok(text) => text.lines().skip(1).filter_map(block).collect::<Vec<_>>(),
            Err(error) => {
                println!("{name:<9} cannot be read: {error}");
                continue;
            }
        };
        let options =
            PackOptions { goal: CAPACITY, time_limit: Duration::from_secs(60), work_limit: u64::MAX };
        let start = Instant::now();
        let packing = pack(&blocks, &options);
        let time = start.elapsed();
        all += time;
        println!(
            "{name:<9} {:>6} {:>10} {:>13} {:>13.4} {:>9.3}",
            blocks.len(),
            packing.load,
            packing.height,
            packing.height as f64 / CAPACITY as f64,
            time.as_secs_f64()
        );
    }
    println!("together {:.3} seconds", all.as_secs_f64());
}

/// A row of `id,lower,upper,size`.
fn block(line: &str) -> Option<Block> {
    let mut fields = line.split(',').skip(1).map(|field| field.trim().parse::<u64>());
    let mut next = || fields.next()?.ok();
    Some(Block { lower: next()?, upper: next()?, bytes: next()? })
}
