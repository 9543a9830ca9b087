// What was saved, and by what: from what the starting layout would have taken to what was taken.
import type { FleetRow, SavingPartKind, SavingParts } from "./api";
import { counted, interval, joules, percent, signedPercent } from "./format";

const KINDS: Record<SavingPartKind, [string, string]> = {
  limits: ["Power and clock limits", "windows with another limit in the starting layout"],
  layouts: ["Other layouts, with their limits", "windows with other replicas, SM shares or settings of the job"],
  taken_back: ["Changes that were taken back", "windows from such a change until it was taken back"],
  hold_outs: ["Hold-outs", "windows without a limit, to see again what the job takes then"],
  restarts: ["Restarts", "windows in which processes restarted"],
  other: ["Not told apart", "windows beside a change, changes that no actuator reported, and energy that lies in no window"],
};

interface Bar {
  key: string;
  label: string;
  meaning: string;
  text: string;
  part: string;
  tone: string;
  from: number;
  to: number;
}

/** The bars in order: each part begins where the one before ends. */
function bars({ baseline_joules: baseline, parts, actual_joules: actual }: SavingParts): Bar[] {
  const whole = { part: "", tone: "whole-bar", from: 0 };
  let at = baseline;
  const steps = parts.map(({ kind, joules: saved, windows }): Bar => {
    const [label, meaning] = KINDS[kind];
    const from = at;
    at -= saved;
    return {
      key: kind,
      label,
      meaning: `${meaning}: ${counted(windows, "window")}`,
      text: `${saved > 0 ? "−" : saved < 0 ? "+" : ""}${joules(Math.abs(saved))}`,
      part: signedPercent(-saved / baseline),
      tone: saved < 0 ? "bad" : "good",
      from,
      to: at,
    };
  });
  return [
    { key: "baseline", label: "Starting layout, for the same samples", meaning: "an estimate by phases of the job", text: joules(baseline), to: baseline, ...whole },
    ...steps,
    { key: "actual", label: "Taken", meaning: "in the record", text: joules(actual), to: actual, ...whole },
  ];
}

export function SavingBridge({ parts, row }: { parts: SavingParts; row: FleetRow }) {
  const all = bars(parts);
  const most = Math.max(...all.flatMap(({ from, to }) => [from, to]));
  const least = Math.min(0, ...all.map(({ to }) => to));
  const place = (value: number) => ((value - least) / (most - least)) * 100;
  if (!(most > least)) return null;
  return (
    <section class="panel" aria-labelledby="bridge-heading">
      <h2 id="bridge-heading">What was saved, and by what</h2>
      <table class="plain bridge">
        <thead class="sr">
          <tr>
            <th scope="col">Part</th>
            <th scope="col">Energy</th>
            <th scope="col">Of the starting layout</th>
            <td />
          </tr>
        </thead>
        <tbody>
          {all.map(({ key, label, meaning, text, part, tone, from, to }) => (
            <tr key={key} title={meaning}>
              <th scope="row">{label}</th>
              <td class={`num tone-${tone}`}>{text}</td>
              <td class="num muted">{part}</td>
              <td class="bar-cell" aria-hidden="true">
                <span class={`bar-part ${tone}`} style={{ left: `${place(Math.min(from, to))}%`, width: `${place(Math.max(from, to)) - place(Math.min(from, to))}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="legend-note">
        {row.saving_is_whole ? "" : `Of the ${percent(row.compared_energy_ratio, 0)} of the energy that can be compared. `}
        Saved in all: {percent(row.saving_ratio)}, {interval(row.saving_ratio_low, row.saving_ratio_high)}. A window counts for the change in force in it. Work that it did less than the starting layout would
        have done in its time counts against it.
      </p>
    </section>
  );
}
