//! Measurements as tables: there and back, and the errors of tables that cannot be used.

use std::error::Error;

use eadt_gpu_sharing::tables::{read_co_runs, read_solo, write_co_runs, write_solo};
use eadt_gpu_sharing::{GpuMeasurements, ProfileMetric};
use eadt_schemas::v1::Origin;
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, LabPlan, SharingLab, paper_suite, tenths};

#[test]
fn tables_keep_every_bit() {
    let lab = SharingLab::new(BoardModel::A100, paper_suite(), LabNoise::usual(3));
    for clocks in [vec![None], vec![Some(1410.0), Some(1005.0)]] {
        let plan = LabPlan { groups: vec![vec![0, 3], vec![5, 5], vec![1, 2, 3]], partitions: tenths(), clocks };
        let whole = lab.measure(&plan).unwrap();
        let solo = read_solo("solo.csv", &write_solo(&whole, Origin::Simulated)).unwrap();
        let together = read_co_runs("co.csv", &write_co_runs(&whole, Origin::Simulated)).unwrap();
        assert_eq!((solo.origin, together.origin), (Origin::Simulated, Origin::Simulated));
        let read = GpuMeasurements::new(solo.idle_watts.unwrap(), solo.profiles, together.runs).unwrap();
        assert_eq!(read, whole);
    }
}

const HEAD: &str = "workload,gpu_model,mps_thread_percentage,samples_per_second,power_watts";

#[test]
fn repetitions_are_combined_by_their_median() {
    let text = format!(
        "{HEAD},run,sm_active_ratio\n# a comment\nidle,board,0,0,30,1,\nidle,board,0,0,34,2,\na,board,100,40,90,1,0.5\n\
         a,board,100,60,190,2,0.6\na,board,100,41,91,3,0.7\na,board,50,20,60,1,0.3\n"
    );
    let solo = read_solo("solo.csv", &text).unwrap();
    assert_eq!(solo.idle_watts, Some(32.0));
    let whole = solo.profiles[0].whole();
    assert_eq!((whole.samples_per_second, whole.power_watts), (41.0, 91.0));
    assert_eq!(whole.counters.get(ProfileMetric::SmActiveRatio), Some(0.6));
    assert_eq!(whole.counters.get(ProfileMetric::DramActiveRatio), None);
}

#[test]
fn a_table_has_the_weakest_origin_of_its_rows() {
    let origin = |column: &str, [first, second]: [&str; 2]| {
        let text = format!("{HEAD}{column}\na,board,100,40,90{first}\na,board,50,20,60{second}\n");
        read_solo("solo.csv", &text).map(|solo| solo.origin)
    };
    assert_eq!(origin("", ["", ""]).unwrap(), Origin::Measured);
    assert_eq!(origin(",origin", [",", ",measured"]).unwrap(), Origin::Measured);
    assert_eq!(origin(",origin", [",imported", ",measured"]).unwrap(), Origin::Imported);
    assert_eq!(origin(",origin", [",Simulated", ",imported"]).unwrap(), Origin::Simulated);
    let error = origin(",origin", [",measured", ",invented"]).unwrap_err().to_string();
    assert_eq!(error, "solo.csv, line 3, column origin: \"invented\" is no origin: measured, imported or simulated");
}

#[test]
fn unusable_tables_are_reported_by_file_line_and_column() {
    let error = |text: &str| {
        let error = read_solo("solo.csv", text).unwrap_err();
        error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
    };
    let rows = |rows: &str| error(&format!("{HEAD}\n{rows}\n"));
    assert_eq!(rows("a,board,100,fast,90"), "solo.csv, line 2, column samples_per_second: \"fast\" is no finite number");
    assert_eq!(rows("a,board,100,NaN,90"), "solo.csv, line 2, column samples_per_second: \"NaN\" is no finite number");
    assert_eq!(
        rows("a,board,100,1,90\na,board,12.5,1,90"),
        "solo.csv, line 3, column mps_thread_percentage: \"12.5\" is no whole percentage from 0 to 100"
    );
    assert!(rows("a,board,100,1,90\na,board,100,1,91").contains("line 3: the same workload, share and clock as in line 2"));
    assert!(rows("a,board,100,1,90\na,other,50,1,91").contains("line 3: workload a was measured on other, and on board before"));
    assert!(rows("a,board,50,1,90").contains("line 2: a profile cannot be made of it: workload a was not measured at 100 %"));
    assert!(rows("a,board,100,1,90000\na,board,50,1,60000").contains("milliwatts? divide by 1000"));
    assert!(rows("idle,board,0,1,30").contains("line 2: a row with 0 % is the idle GPU"));
    assert!(rows("idle,board,0,0,0").contains("column power_watts: \"0\" is no idle power"));
    assert!(rows("").contains("solo.csv has no rows"));
    assert!(rows("a,board,100").contains("solo.csv is no table"));
    assert!(rows(",board,100,1,90").contains("column workload: \"\" is no name"));
    assert!(error("workload,power_watts\na,1\n").contains("lacks the column gpu_model; it has workload, power_watts"));
    assert!(error(&format!("{HEAD},smactive\n")).contains("has the column smactive, which is not known here"));
    assert!(error(&format!("{HEAD},run,run\n")).contains("the column run twice"));

    let head = "co_run,workload,mps_thread_percentage,samples_per_second,power_watts";
    let error = |rows: &str| read_co_runs("co.csv", &format!("{head}\n{rows}\n")).unwrap_err().to_string();
    assert!(error("1,a,50,3,100\n1,b,50,4,101").contains("co.csv, line 3: co-run 1 has another power or clock"));
    assert!(error("1,a,50,x,100").contains("co.csv, line 2, column samples_per_second"));
}
