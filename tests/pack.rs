//! Packings and the command that makes them, checked by code of its own.

#[path = "schedule_support/random.rs"]
#[allow(dead_code)]
mod random;

use std::{
    collections::HashSet,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use random::Random;
use tg::schedule::pack::{Block, PackOptions, Packing, pack};

/// Holds that no two blocks that share a time overlap, and that the figures are true: a sweep over
/// the times, with the taken ranges of each.
fn check(blocks: &[Block], packing: &Packing) {
    assert_eq!(packing.offsets.len(), blocks.len());
    let mut times: Vec<u64> = blocks.iter().map(|b| b.lower).collect();
    times.sort_unstable();
    times.dedup();
    let mut load = 0;
    for time in times {
        let mut taken: Vec<(u64, u64)> = blocks
            .iter()
            .zip(&packing.offsets)
            .filter(|(b, _)| b.lower <= time && time < b.upper && b.bytes > 0)
            .map(|(b, &offset)| (offset, offset.checked_add(b.bytes).unwrap()))
            .collect();
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{:?} and {:?} overlap at {time}", pair[0], pair[1]);
        }
        if let Some(&(_, top)) = taken.last() {
            assert!(top <= packing.height, "a block ends at {top}, above {}", packing.height);
        }
        load = load.max(taken.iter().map(|(from, to)| to - from).sum());
    }
    assert_eq!(load, packing.load);
    assert!(packing.load <= packing.bound && packing.bound <= packing.height);
}

/// The least height: blocks in every order of their offsets, each on top of the earlier ones that it
/// shares a time with. One of these is any packing whose blocks have been lowered as far as they go.
fn least_height(blocks: &[Block]) -> u64 {
    fn extend(blocks: &[Block], placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
        if height >= *best {
            return;
        }
        if placed.len() == blocks.len() {
            *best = height;
            return;
        }
        let floor = placed.last().map_or(0, |&(last, top)| top - blocks[last].bytes);
        for i in 0..blocks.len() {
            if placed.iter().any(|&(other, _)| other == i) {
                continue;
            }
            let shares = |b: &Block| b.lower < blocks[i].upper && blocks[i].lower < b.upper;
            let below = placed.iter().filter(|&&(j, _)| shares(&blocks[j]));
            let offset = below.map(|&(_, top)| top).max().unwrap_or(0);
            if offset >= floor {
                let top = offset + blocks[i].bytes;
                placed.push((i, top));
                extend(blocks, placed, height.max(top), best);
                placed.pop();
            }
        }
    }
    let mut best = u64::MAX;
    extend(blocks, &mut Vec::new(), 0, &mut best);
    best
}

fn random_blocks(random: &mut Random, count: usize, times: usize) -> Vec<Block> {
    (0..count)
        .map(|_| {
            let lower = random.below(times) as u64;
            let upper = lower + 1 + random.below(times / 2 + 1) as u64;
            Block { lower, upper, bytes: 1 + random.below(9) as u64 }
        })
        .collect()
}

/// Eleven blocks whose least height is one above their load.
const GAP: [(u64, u64, u64); 11] = [
    (7, 8, 3),
    (5, 7, 2),
    (3, 5, 3),
    (4, 7, 1),
    (7, 8, 2),
    (6, 8, 3),
    (1, 5, 3),
    (5, 6, 1),
    (2, 4, 2),
    (4, 6, 1),
    (5, 7, 2),
];

fn gap() -> Vec<Block> {
    GAP.map(|(lower, upper, bytes)| Block { lower, upper, bytes }).to_vec()
}

/// Holds that a packing is the lowest and that nothing false is proved. True if the least height is
/// above the load.
fn check_small(blocks: &[Block], what: &str) -> bool {
    let least = least_height(blocks);
    let packing = pack(blocks, &PackOptions::default());
    check(blocks, &packing);
    assert_eq!((packing.bound, packing.height), (least, least), "{what}: {blocks:?}");
    least > packing.load
}

#[test]
fn small_packings_are_optimal() {
    for seed in 0..1500u64 {
        let random = &mut Random::new(seed);
        let count = 3 + random.below(6);
        let times = 3 + random.below(8);
        check_small(&random_blocks(random, count, times), &format!("seed {seed}"));
    }
}

#[test]
fn loads_that_no_packing_reaches_are_told_apart() {
    assert!(check_small(&gap(), "as it is"));
    // Its like: one or two blocks are longer, larger or smaller, or there is one more.
    let mut above = 0;
    for seed in 0..100u64 {
        let random = &mut Random::new(seed);
        let mut blocks = gap();
        for _ in 0..1 + random.below(2) {
            let at = random.below(blocks.len());
            match random.below(4) {
                0 => blocks[at].upper += 1,
                1 => blocks[at].bytes += 1,
                2 => blocks[at].bytes = blocks[at].bytes.saturating_sub(1).max(1),
                _ => blocks[at].lower -= 1,
            }
        }
        if random.chance(30) {
            let lower = random.below(8) as u64;
            blocks.push(Block { lower, upper: lower + 1, bytes: 1 + random.below(2) as u64 });
        }
        above += usize::from(check_small(&blocks, &format!("seed {seed}")));
    }
    println!("{above} of 100 are above their load");
    // As many as brute force finds: the others can be as low as their load.
    assert_eq!(above, 4);
}

/// A rectangle that is cut into blocks without gaps, so that its height is the least.
fn cut(random: &mut Random, pieces: usize) -> Vec<Block> {
    let mut parts = vec![(0u64, 1000u64, 1u64 << 20)];
    while parts.len() < pieces {
        let at = random.below(parts.len());
        let (lower, upper, bytes) = parts[at];
        if random.chance(50) && bytes > 4096 {
            let below = 1024 * (1 + random.below((bytes / 1024 - 1) as usize) as u64);
            parts[at].2 = below;
            parts.push((lower, upper, bytes - below));
        } else if upper - lower > 1 {
            let middle = lower + 1 + random.below((upper - lower - 1) as usize) as u64;
            parts[at].1 = middle;
            parts.push((middle, upper, bytes));
        }
    }
    parts.into_iter().map(|(lower, upper, bytes)| Block { lower, upper, bytes }).collect()
}

#[test]
fn rectangles_without_gaps_are_put_together_again() {
    let options = PackOptions { work_limit: 200_000_000, ..PackOptions::default() };
    let mut whole = 0;
    for seed in 0..40u64 {
        let random = &mut Random::new(seed);
        let pieces = 10 + random.below(40);
        let blocks = cut(random, pieces);
        let packing = pack(&blocks, &options);
        check(&blocks, &packing);
        assert_eq!(packing.load, 1 << 20);
        whole += usize::from(packing.height == 1 << 20);
    }
    println!("{whole} of 40 without gaps");
    assert!(whole >= 36);
}

fn instance(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("benches/data/minimalloc/{name}.csv"))
}

#[test]
fn published_instances_fit_their_capacity() {
    let mut blocks_in_all = 0;
    for name in ["A", "B", "C", "D", "E", "F"] {
        let text = std::fs::read_to_string(instance(name)).unwrap();
        let rows = text.lines().skip(1).filter(|line| !line.is_empty());
        let blocks: Vec<Block> = rows
            .map(|line| {
                let fields: Vec<u64> = line.split(',').map(|field| field.trim().parse().unwrap()).collect();
                Block { lower: fields[1], upper: fields[2], bytes: fields[3] }
            })
            .collect();
        let options =
            PackOptions { goal: 1 << 20, time_limit: Duration::from_secs(120), work_limit: u64::MAX };
        let packing = pack(&blocks, &options);
        check(&blocks, &packing);
        assert!(packing.height <= 1 << 20, "{name} is {} high", packing.height);
        blocks_in_all += blocks.len();
    }
    assert_eq!(blocks_in_all, 1251);
}

fn tg(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tg"))
        .arg("pack")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that refuses its arguments does not read.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn texts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_command_adds_a_column() {
    let table = "id,lower,upper,size\na,0,2,3\nb,1,3,4\nc,2,4,3\n";
    let (code, out, err) = texts(&tg(&["-"], table.as_bytes()));
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "id,lower,upper,size,offset\na,0,2,3,0\nb,1,3,4,3\nc,2,4,3,0\n");
    assert_eq!(err, "3 blocks, height 7, load 7, no packing is lower\n");
    // What it printed can be packed again: the column is replaced.
    assert_eq!(texts(&tg(&["-"], out.as_bytes())).1, out);
}

#[test]
fn headers_are_optional_and_other_columns_stay() {
    let (code, out, _) = texts(&tg(&["-"], b"a, 0, 2, 3\r\n\r\nb,1,3,4,\"x,y\"\n"));
    assert_eq!((code, out.as_str()), (0, "a, 0, 2, 3,0\nb,1,3,4,\"x,y\",3\n"));
    let (code, out, _) = texts(&tg(&["-"], b"size,what,upper,lower,id\n3,x,2,0,a\n"));
    assert_eq!((code, out.as_str()), (0, "size,what,upper,lower,id,offset\n3,x,2,0,a,0\n"));
    // No blocks at all.
    let (code, out, _) = texts(&tg(&["-"], b"id,lower,upper,size\n"));
    assert_eq!((code, out.as_str()), (0, "id,lower,upper,size,offset\n"));
}

#[test]
fn capacities() {
    let file = instance("D");
    let (code, out, err) = texts(&tg(&[file.to_str().unwrap(), "--capacity", "1048576"], b""));
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().count(), 214);
    assert!(err.contains("fits the capacity of 1048576"), "{err}");

    let (code, out, err) = texts(&tg(&["-", "--capacity", "6"], b"a,0,2,3\nb,1,3,4\n"));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("the blocks do not fit 6 bytes"), "{err}");
    assert!(err.contains("the lowest packing found is 7 bytes high"), "{err}");
    assert!(err.contains("this is impossible: blocks of 7 bytes are alive at one time"), "{err}");

    // The load fits, but no packing does.
    let blocks = gap();
    let table: String = blocks
        .iter()
        .enumerate()
        .map(|(i, b)| format!("{i},{},{},{}\n", b.lower, b.upper, b.bytes))
        .collect();
    let load = pack(&blocks, &PackOptions::default()).load.to_string();
    let (code, _, err) = texts(&tg(&["-", "--capacity", &load], table.as_bytes()));
    assert_eq!(code, 1);
    assert!(err.contains("this is impossible: the search went through all packings below"), "{err}");

    // No time to find out.
    let file = instance("E");
    let (code, _, err) = texts(&tg(&[file.to_str().unwrap(), "--capacity", "1048576", "--time", "0"], b""));
    assert_eq!(code, 1);
    assert!(err.contains("this is not proved to be impossible"), "{err}");
}

#[test]
fn wrong_usage() {
    for args in [
        &[][..],
        &["-", "--capacity", "-1"],
        &["-", "--capacity", "x"],
        &["-", "--time", "-1"],
        &["-", "--time", "NaN"],
    ] {
        assert_eq!(tg(args, b"").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn faults_of_a_table_have_a_place() {
    // What is wrong, where, and how the message says it.
    let cases: &[(&str, &str, &str)] = &[
        ("", "", "the table is empty"),
        ("\n \n", "", "the table is empty"),
        ("id,lower,upper\n", "1:1", "the header has no column `size`"),
        ("id,lower,upper,size\n1,0,2,8\n2,0,3,4,99\n", "3:1", "this row has 5 fields, the header names 4"),
        ("id,lower,upper,size,size\n", "1:1", "the header has two columns `size`"),
        ("a,0,2,3\nb,1,x3,4\n", "2:5", "`upper` is `x3`, which is not a whole number"),
        ("a,0,2,3\nb,1,3,-4\n", "2:7", "`size` is negative"),
        ("a,0,2,3\nb,1.5,3,4\n", "2:3", "`lower` is `1.5`, which is not a whole number"),
        ("a,0,2,3\nb,1,3\n", "2:1", "this row has 3 fields, the columns need 4"),
        ("a,0,2,3\nb,1,,4\n", "2:1", "`upper` is empty"),
        ("a,0,2,3\n,1,2,4\n", "2:1", "the id of this block is empty"),
        ("a,0,2,3\nb,3,3,4\n", "2:3", "`lower` is 3, `upper` must be larger"),
        ("a,0,2,3\nb,4,3,4\n", "2:3", "`lower` is 4, `upper` must be larger"),
        ("a,0,2,3\na,1,3,4\n", "2:1", "two blocks have the id `a`"),
        ("a,0,2,9223372036854775808\n", "1:7", "`size` is 2^63 or more"),
        ("a,0,2,99999999999999999999999\n", "1:7", "`size` is 2^63 or more"),
        ("a,0,2,9223372036854775807\nb,1,3,1\n", "2:1", "the blocks alive at 1 add up to 2^63 bytes or more"),
    ];
    for (table, place, message) in cases {
        let (code, out, err) = texts(&tg(&["-"], table.as_bytes()));
        assert_eq!((code, out.as_str()), (1, ""), "{table:?}");
        assert!(err.contains(message), "{table:?}: {err}");
        assert!(place.is_empty() || err.contains(&format!("<stdin>:{place}")), "{table:?}: {err}");
    }
    let (code, _, err) = texts(&tg(&["-"], b"a,0,2,\xff\n"));
    assert!(code == 1 && err.contains("is not UTF-8 text"), "{err}");
    let (code, _, err) = texts(&tg(&["no/such/file.csv"], b""));
    assert!(code == 1 && err.contains("there is no such file"), "{err}");
}

#[test]
fn a_table_of_nonsense_gives_ten_errors_at_most() {
    let table = "x,y,z,w\n".repeat(1000);
    let (code, _, err) = texts(&tg(&["-"], table.as_bytes()));
    assert_eq!(code, 1);
    assert_eq!(err.matches("is not a whole number").count(), 10, "{err}");
}

#[test]
fn sizes_near_the_limit() {
    let table = "a,0,2,9223372036854775807\nb,2,3,9223372036854775807\n";
    let (code, out, err) = texts(&tg(&["-"], table.as_bytes()));
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "a,0,2,9223372036854775807,0\nb,2,3,9223372036854775807,0\n");
    assert!(err.contains("height 9223372036854775807"), "{err}");
}

#[test]
fn a_million_rows() {
    let random = &mut Random::new(7);
    let mut table = String::from("id,lower,upper,size\n");
    for i in 0..1_000_000u64 {
        let lower = random.below(1_000_000);
        let upper = lower + 1 + random.below(60);
        table.push_str(&format!("{i},{lower},{upper},{}\n", 256 * (1 + random.below(64))));
    }
    let start = Instant::now();
    let (code, out, err) = texts(&tg(&["-", "--time", "1"], table.as_bytes()));
    assert_eq!(code, 0, "{err}");
    assert!(start.elapsed() < Duration::from_secs(120), "took {:?}", start.elapsed());
    let mut blocks = Vec::new();
    let mut offsets = Vec::new();
    let mut ids = HashSet::new();
    for line in out.lines().skip(1) {
        let fields: Vec<u64> = line.split(',').map(|f| f.parse().unwrap()).collect();
        ids.insert(fields[0]);
        blocks.push(Block { lower: fields[1], upper: fields[2], bytes: fields[3] });
        offsets.push(fields[4]);
    }
    assert_eq!(ids.len(), 1_000_000);
    // Blocks are short: each is compared with those that start soon after it.
    let mut by_start: Vec<usize> = (0..blocks.len()).collect();
    by_start.sort_by_key(|&i| blocks[i].lower);
    for (at, &i) in by_start.iter().enumerate() {
        for &j in by_start[at + 1..].iter().take_while(|&&j| blocks[j].lower < blocks[i].upper) {
            let apart =
                offsets[i] + blocks[i].bytes <= offsets[j] || offsets[j] + blocks[j].bytes <= offsets[i];
            assert!(apart, "blocks {i} and {j} overlap");
        }
    }
}

/// A large table with no time: one placement, and nothing that takes longer.
#[test]
fn the_time_limit_holds_for_greedy_placements_too() {
    let blocks: Vec<Block> = (0..200_000u64)
        .map(|i| {
            let lower = i * 7919 % 200_000;
            Block { lower, upper: lower + 1 + i * 31 % 199, bytes: 256 * (1 + i * 17 % 97) }
        })
        .collect();
    let time = |time_limit| {
        let start = Instant::now();
        let packing = pack(&blocks, &PackOptions { goal: 0, time_limit, work_limit: 0 });
        assert!(packing.load <= packing.bound && packing.bound <= packing.height);
        (start.elapsed(), packing.height)
    };
    let (short, hasty) = time(Duration::ZERO);
    let (long, careful) = time(Duration::from_secs(60));
    assert!(hasty >= careful);
    // It is a part of what all placements take; on a busy machine they differ by less.
    assert!(short * 2 < long, "{short:?} of {long:?}");
}
