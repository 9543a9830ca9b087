// An earlier moment of an archive: which one is shown, and whether a replay of the record gives the same.
import { useRef, useState } from "preact/hooks";
import type { Overview, ReplayCheck } from "./api";
import { moment, visible } from "./format";
import { Problem, WithCode } from "./parts";
import { changed, parseRoute } from "./state";

const MINUTE = 60_000;
/** Each moment is read from the record: one that the slider only passes is not asked for. */
const PAUSE_MS = 300;

const VERDICTS: Record<ReplayCheck["verdict"], [string, string, string]> = {
  running: ["◔", "replaying", "busy"],
  identical: ["✓", "replayed, identical", "good"],
  different: ["✗", "replayed, not the same", "bad"],
  unknown: ["○", "not replayed", "calm"],
};

function ReplayBadge({ check }: { check: ReplayCheck }) {
  const [mark, word, tone] = VERDICTS[check.verdict];
  return (
    <>
      <span class={`badge tone-${tone}`}>
        <span aria-hidden="true">{mark}</span> {word}
      </span>
      {check.verdict !== "running" && (
        <span class={check.verdict === "different" ? "tone-bad" : "muted"}>
          <WithCode text={visible(check.text)} />
        </span>
      )}
    </>
  );
}

export function TimeTravel({ newest, at, error }: { newest: Overview; at: number | null; error: string | null }) {
  const { first_ms: first, now_ms: last, replay } = newest;
  const [chosen, setChosen] = useState<number | null>(null);
  const timer = useRef(0);
  // The first window is there when it ends.
  const begin = first === null ? null : first + (newest.source.window_seconds ?? MINUTE / 1000) * 1000;
  const shown = chosen ?? at ?? last ?? 0;
  const go = (time: number | null) => {
    clearTimeout(timer.current);
    setChosen(time ?? last);
    timer.current = window.setTimeout(() => {
      const now = parseRoute(location.hash);
      // The way back does not go through each moment that was tried.
      history.replaceState(null, "", changed(now, { at: time === null ? null : String(time), to: null, cursor: null }));
      dispatchEvent(new HashChangeEvent("hashchange"));
      setChosen(null);
    }, PAUSE_MS);
  };
  return (
    <section class="moment" aria-label="Moment of the record">
      {begin !== null && last !== null && last > begin && (
        <>
          <label for="moment">As of</label>
          <input
            id="moment"
            type="range"
            min={begin}
            max={last}
            step={MINUTE}
            value={shown}
            aria-valuetext={moment(shown)}
            onChange={(event) => {
              const time = Number(event.currentTarget.value);
              go(time + MINUTE > last ? null : time);
            }}
          />
          <output for="moment">{shown === last ? "the end of the record" : moment(shown)}</output>
          {at !== null && (
            <button type="button" class="button" onClick={() => go(null)}>
              To the end
            </button>
          )}
        </>
      )}
      {replay && <ReplayBadge check={replay} />}
      <Problem error={error} />
    </section>
  );
}
