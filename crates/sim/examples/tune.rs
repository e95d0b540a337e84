use forerun_model::Nanos;
use forerun_scheduler::*;
use forerun_sim::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let name = args.get(1).cloned().unwrap_or("trace-docs".into());
    let full = args.get(2).map(|s| s == "full").unwrap_or(false);
    let read = |e: &str| std::fs::read(format!("fixtures/traces/{name}.{e}")).unwrap();
    let trace = Trace::parse(&read("json"), &read("bin")).unwrap();
    let disks: Vec<u64> =
        if full { vec![300, 600, 1000, 1400, 2500, 4000, 8000] } else { vec![300, 1400, 4000] };
    let computes: Vec<f64> =
        if full { vec![5.0, 10.0, 20.0, 35.0, 50.0] } else { vec![5.0, 10.0, 20.0, 50.0] };
    let cs: Vec<usize> = if full { vec![0, 4, 8, 16, 32, 64, 96, 128] } else { vec![4, 16, 64, 96, 128] };
    println!(
        "{:>5} {:>4} {:>4} | {:>7} {:>7} {:>7} | ratio  hidden extra stall%  eff none/gated/oracle  prec rec",
        "MB/s", "tok/s", "c", "none", "gated", "oracle"
    );
    let mut worst: f64 = 0.0;
    let only = args.get(3).cloned().unwrap_or_default();
    let (mut n_bad, mut n_hid, mut n_extra) = (0, 0, 0);
    for &d in &disks {
        for &t in &computes {
            for &c in &cs {
                let mut r = Replay::of(
                    &trace,
                    c * 40,
                    1_350_000,
                    Disk { latency: Nanos::from_micros(100), depth: 2, ..Disk::of_rate(d * 1_000_000) },
                    Compute::of_rate(t),
                );
                r.n_layers = 40;
                r.n_warm = 64;
                r.n_tokens = 400;
                if c == 0 {
                    r.policy = CachePolicy::KeepNone;
                    r.n_slots = 32;
                }
                if !only.is_empty() && only != format!("{d},{t},{c}") {
                    continue;
                }
                let none = r.run(&trace, Box::new(NoPredictor)).unwrap();
                let g = r.run(&trace, Box::new(RouterAhead::default())).unwrap();
                let o = r.oracle(&trace).unwrap();
                let ratio = g.time.0 as f64 / none.time.0 as f64;
                let hid = (none.stall().0 as f64 - g.stall().0 as f64)
                    / (none.stall().0 as f64 - o.stall().0 as f64).max(1.0);
                let gain_o = 1.0 - o.time.0 as f64 / none.time.0 as f64;
                worst = worst.max(ratio);
                let bad = ratio > 1.01;
                let low = gain_o > 0.01 && hid < if c >= 96 { 0.5 } else { 0.6 };
                let ex = g.extra_bytes() > 0.1;
                n_bad += usize::from(bad);
                n_hid += usize::from(low);
                n_extra += usize::from(ex);
                if !only.is_empty() {
                    println!("none {:#?}\ngated {:#?}\noracle {:#?}", none.stats, g.stats, o.stats);
                }
                println!(
                    "{d:>5} {t:>4} {c:>4} | {:>7.2} {:>7.2} {:>7.2} | {ratio:.3} {hid:>6.2} {:>5.3} {:>5.2}  {:.2}/{:.2}/{:.2}  {:.2} {:.2} {}{}{}",
                    none.ms_per_token(),
                    g.ms_per_token(),
                    o.ms_per_token(),
                    g.extra_bytes(),
                    none.stall().0 as f64 / none.time.0 as f64,
                    none.overlap_efficiency(),
                    g.overlap_efficiency(),
                    o.overlap_efficiency(),
                    g.precision(),
                    g.recall(),
                    if bad { "SLOW " } else { "" },
                    if low { "LOW " } else { "" },
                    if ex { "EXTRA" } else { "" }
                );
            }
        }
    }
    println!("worst {worst:.4}; slow {n_bad} low {n_hid} extra {n_extra}");
}
