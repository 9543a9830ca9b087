// Changes what may be done to a workload: what is so, what would be, and only then the change.
import { useEffect, useRef, useState } from "preact/hooks";
import { askSession, mayChange, type Mode, NoAnswer, post, type Session, workloadPath } from "./api";
import { copy } from "./copy";
import { visible } from "./format";
import { Problem } from "./parts";

interface Terms {
  mode: Mode;
  paused: boolean;
}

export interface Recommended {
  id: string;
  reason: string;
}

/** What is asked about, with what the person is shown of it. */
type Change = { change: "pause" } | { change: "resume" } | { change: "set_mode"; mode: Mode; shown: Mode } | { change: "approve"; shown: Recommended };

const EFFECTS: Record<Mode, string> = {
  observe: "It is reported on, and nothing of it is changed.",
  recommend: "Changes are recommended, and made only if somebody approves them.",
  enforce: "It is changed within its bounds without being asked about, and a change that does not help is reverted.",
};

/** Who asks, and whether they may change anything; `null` until it is known. */
export function useSession(): Session | null {
  const [session, setSession] = useState<Session | null>(null);
  useEffect(() => {
    if (copy) return;
    askSession().then(setSession, () => setSession(null));
  }, []);
  return session;
}

/** The buttons by which a person changes the terms of a workload; nothing without that right. */
export function TermsButtons({ workload, terms, recommended }: { workload: string; terms: Terms; recommended: Recommended | null }) {
  const session = useSession();
  const dialog = useRef<HTMLDialogElement>(null);
  const [asked, setAsked] = useState<Change | null>(null);
  const [message, setMessage] = useState("");
  const [error, setError] = useState<string | null>(null);
  // The announced change is shown now.
  useEffect(() => setMessage(""), [terms.mode, terms.paused, recommended?.id]);
  if (session === null || !mayChange(session, workload)) return null;

  const ask = (change: Change) => {
    setAsked(change);
    setError(null);
    if (!dialog.current?.open) dialog.current?.showModal();
  };
  const askMode = () => ask({ change: "set_mode", mode: terms.mode, shown: terms.mode });
  const confirm = async (event: Event) => {
    event.preventDefault();
    if (asked === null) return;
    const request = asked.change === "approve" ? { change: asked.change, decision_id: asked.shown.id } : asked;
    try {
      const { changed } = await post<{ changed: boolean }>(`${workloadPath(workload)}/terms`, request);
      setMessage(changed ? "Done: it is shown here when the actuator has declared it." : "It was so already.");
      dialog.current?.close();
    } catch (failure) {
      const unknown = failure instanceof NoAnswer ? ": whether it was done is shown here once it does" : "";
      setError(`${failure instanceof Error ? failure.message : String(failure)}${unknown}`);
    }
  };
  // Several workloads are in one list.
  const named = (word: string) => `${word} ${visible(workload)}`;
  const outdated = asked && describeOutdated(asked, terms, recommended);
  const lookAgain = asked?.change === "set_mode" ? askMode : recommended && (() => ask({ change: "approve", shown: recommended }));
  return (
    <span class="terms-buttons">
      {recommended && !terms.paused && terms.mode === "recommend" && (
        <button type="button" class="button" aria-label={named("Approve")} onClick={() => ask({ change: "approve", shown: recommended })}>
          Approve
        </button>
      )}
      <button type="button" class="button" aria-label={named(terms.paused ? "Resume" : "Pause")} onClick={() => ask({ change: terms.paused ? "resume" : "pause" })}>
        {terms.paused ? "Resume" : "Pause"}
      </button>
      <button type="button" class="button" aria-label={named("Mode")} onClick={askMode}>
        Mode
      </button>
      <span class="muted" role="status">
        {message}
      </span>
      <dialog ref={dialog} aria-label={`Change the policy of ${visible(workload)}`} class="change">
        {asked && (
          <form onSubmit={confirm}>
            <h2>
              {TITLES[asked.change]} <bdi>{visible(workload)}</bdi>
            </h2>
            {asked.change === "set_mode" && <Modes mode={asked.mode} choose={(mode) => setAsked({ ...asked, mode })} />}
            <Difference terms={terms} change={asked} />
            <p class="muted">
              In the name of {visible(session.editor ?? "")}, which the policy's declaration and the change will carry.
            </p>
            <Problem error={error} />
            <p role="status">{outdated}</p>
            <p class="confirm">
              <button type="submit" class="button primary" disabled={outdated !== null || (asked.change === "set_mode" && asked.mode === asked.shown)}>
                {TITLES[asked.change]}
              </button>
              {outdated !== null && lookAgain && (
                <button type="button" class="button" onClick={lookAgain}>
                  Look again
                </button>
              )}
              <button type="button" class="button" onClick={() => dialog.current?.close()}>
                Cancel
              </button>
            </p>
          </form>
        )}
      </dialog>
    </span>
  );
}

const TITLES: Record<Change["change"], string> = { pause: "Pause", resume: "Resume", set_mode: "Set the mode", approve: "Approve" };

function Modes({ mode, choose }: { mode: Mode; choose: (mode: Mode) => void }) {
  return (
    <fieldset>
      <legend>Mode</legend>
      {(Object.keys(EFFECTS) as Mode[]).map((one) => (
        <label key={one}>
          <input type="radio" name="mode" value={one} checked={mode === one} onChange={() => choose(one)} /> {one}
        </label>
      ))}
    </fieldset>
  );
}

/** What is so, what would be, and what follows from it. */
function Difference({ terms, change }: { terms: Terms; change: Change }) {
  const [name, before, after, effect] = difference(terms, change);
  return (
    <>
      <p class="difference">
        {name}:{" "}
        <s>
          <span class="sr">from </span>
          {before}
        </s>{" "}
        <span aria-hidden="true">→</span>
        <span class="sr"> to </span> <b>{after}</b>
      </p>
      <p>{effect}</p>
    </>
  );
}

function difference(terms: Terms, change: Change): [string, string, string, string] {
  switch (change.change) {
    case "pause":
      return ["paused", "no", "yes", "Nothing of it is changed from the next step on; what is in force stays, and is reported on."];
    case "resume":
      return ["paused", "yes", "no", EFFECTS[terms.mode]];
    case "set_mode":
      return ["mode", change.shown, change.mode, EFFECTS[change.mode]];
    case "approve":
      return ["recommendation", "waits", "applied once", `${visible(change.shown.reason)}. It is applied unless it expires or no longer fits.`];
  }
}

/** What changed since the dialog showed it; `null`: nothing, so that it may be confirmed. */
function describeOutdated(change: Change, terms: Terms, recommended: Recommended | null): string | null {
  if (change.change === "set_mode" && change.shown !== terms.mode) return `The mode is ${terms.mode} by now.`;
  if (change.change !== "approve" || change.shown.id === recommended?.id) return null;
  return recommended ? "Another change is recommended by now." : "This is not recommended any more, and nothing else is at present.";
}
