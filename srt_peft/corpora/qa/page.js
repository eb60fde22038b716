"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const WORDS = { accept: "accepted", edit: "edited", reject: "rejected" };
  const SHOWN = {
    undecided: (q) => !q.decision, all: () => true, reject: (q) => q.decision === "reject",
    kept: (q) => q.decision === "accept" || q.decision === "edit",
  };
  let questions = [], past = [], here = 0, editing = false, despite = "";

  // --- the server: what it does not confirm has not happened ---

  const ask = async (path, body) => {
    const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const answer = await fetch(path, sent);
    return { status: answer.status, said: await answer.json() };
  };
  const say = (text, fault) => {
    at("said").textContent = text;
    at("said").className = fault ? "fault" : "soft";
  };
  const decide = async (question, decision, more) => {
    let answer;
    try {
      answer = await ask("decide", { id: question.id, decision, seen: question.seen, ...more });
    } catch {
      say("Not saved: the server does not answer. Start it again, and open the address that it prints.", true);
      return null;
    }
    if (answer.status === 200) {
      questions[questions.indexOf(question)] = answer.said.question;
    } else if (answer.status !== 422) {
      say(`Not saved: ${answer.said.faults.join("; ")}. Reload this page.`, true);
    }
    return answer;
  };

  // --- what is seen ---

  const filter = () => document.querySelector("#filter input:checked").value;
  const fits = (q) => SHOWN[filter()](q);
  const step = (by) => {
    for (let i = here + by; i >= 0 && i < questions.length; i += by) if (fits(questions[i])) return i;
    return -1;
  };
  const settle = () => {
    if (questions[here] && fits(questions[here])) return;
    const next = step(1);
    here = next >= 0 ? next : step(-1);
  };
  const count = (...kinds) => questions.filter((q) => kinds.includes(q.decision)).length;

  const head = () => {
    const all = questions.length, told = [count("accept"), count("edit"), count("reject")];
    const decided = told[0] + told[1] + told[2];
    at("counts").textContent = `${decided} of ${all} decided: ${told[0]} accepted, ${told[1]} edited, ${told[2]} rejected`;
    document.querySelectorAll("#progress i").forEach((bar, i) => { bar.style.width = `${(100 * told[i]) / all}%`; });
    at("progress").setAttribute("aria-valuemax", all);
    at("progress").setAttribute("aria-valuenow", decided);
  };
  const show = () => {
    head();
    const q = here >= 0 ? questions[here] : null;
    at("main").hidden = !q;
    at("done").hidden = !!q;
    at("editor").hidden = !editing;
    at("shown").hidden = at("deciding").hidden = at("filter").disabled = editing;
    document.documentElement.dataset.here = q ? q.id : "";
    if (!q) {
      at("done-title").textContent = filter() === "undecided" ? "All questions are decided." : "There are none.";
      return;
    }
    at("title").textContent = q.title;
    at("about").textContent = [q.document, q.source].filter(Boolean).join(" · ");
    const mark = make("mark", q.passage[1]);
    at("passage").replaceChildren(q.passage[0], mark, q.passage[2]);
    at("passage").scrollTop = mark.offsetTop - at("passage").offsetTop - at("passage").clientHeight / 3;
    at("was").textContent = q.was ? `Before the update: ${q.was}` : "";
    const chips = [make("span", `${here + 1} of ${questions.length}`), make("span", q.split), make("span", q.kind), make("span", q.maker)];
    if (q.decision) chips.push(make("span", WORDS[q.decision], q.decision));
    at("chips").replaceChildren(...chips);
    at("question").textContent = q.question;
    at("choices").replaceChildren(...q.choices.map((choice, i) => {
      const letter = "ABCD"[i], line = make("li", "", letter === q.answer ? "right" : "");
      line.append(make("b", letter), make("span", choice));
      return line;
    }));
  };

  // --- editing ---

  const open = (q) => {
    editing = true;
    despite = "";
    at("edit-question").value = q.question;
    const lines = q.choices.map((choice, i) => {
      const line = make("label", ""), right = make("input", ""), text = make("input", "");
      Object.assign(right, { type: "radio", name: "right", value: "ABCD"[i], checked: "ABCD"[i] === q.answer });
      right.setAttribute("aria-label", `${"ABCD"[i]} is right`);
      Object.assign(text, { type: "text", value: choice });
      text.setAttribute("aria-label", `Choice ${"ABCD"[i]}`);
      line.append(right, text);
      return line;
    });
    at("edit-choices").replaceChildren(at("edit-choices").firstElementChild, ...lines);
    at("faults").replaceChildren();
    show();
    at("edit-question").focus();
  };
  const close = () => {
    editing = false;
    show();
  };
  const save = async () => {
    const said = {
      question: at("edit-question").value,
      choices: [...document.querySelectorAll("#edit-choices input[type=text]")].map((input) => input.value),
      answer: document.querySelector("#edit-choices input:checked").value,
    };
    const q = questions[here], same = JSON.stringify(said);
    const answer = await decide(q, "edit", { ...said, despite: despite === same });
    if (answer && answer.status === 422) {
      const { faults, doubts } = answer.said;
      despite = faults.length ? "" : same; // a person may know better than the passage: the same again is saved
      const told = faults.map((fault) => make("p", fault));
      doubts.forEach((doubt) => told.push(make("p", `${doubt}. Save again to keep it all the same.`)));
      at("faults").replaceChildren(...told);
    } else if (answer && answer.status === 200) {
      past.push(q.id);
      editing = false;
      say("Saved.");
      onward();
    }
  };

  // --- deciding ---

  const onward = () => {
    const next = step(1);
    if (next >= 0) here = next;
    settle();
    show();
  };
  const judge = async (decision) => {
    const q = questions[here], answer = q && (await decide(q, decision));
    if (!answer || answer.status !== 200) return;
    past.push(q.id);
    say(`Saved: ${WORDS[decision]}.`);
    onward();
  };
  const undo = async () => {
    const id = past[past.length - 1], i = questions.findIndex((q) => q.id === id);
    if (i < 0) { say("There is nothing to take back."); return; }
    const answer = await decide(questions[i], "undo");
    if (!answer || answer.status !== 200) return;
    past.pop();
    here = i;
    if (!fits(questions[i])) document.querySelector("#filter input[value=all]").checked = true;
    say("Taken back.");
    show();
  };
  const move = (by) => {
    const next = step(by);
    if (next >= 0) here = next;
    show();
  };
  const KEYS = {
    a: () => judge("accept"), r: () => judge("reject"), e: () => questions[here] && open(questions[here]),
    j: () => move(1), k: () => move(-1), u: undo,
    f: () => {
      document.querySelector(`#filter input[value=${filter() === "undecided" ? "all" : "undecided"}]`).checked = true;
      refit();
    },
  };
  const refit = () => {
    if (here < 0) here = 0;
    settle();
    show();
  };

  // One after the other, in the order of the keys: a key that is pressed while another is being saved is not lost.
  let work = Promise.resolve();
  const soon = (act) => { work = work.then(act).catch((error) => say(String(error), true)); };

  document.addEventListener("keydown", (event) => {
    if (editing) {
      if (event.key === "Escape") soon(close);
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); soon(save); }
    } else if (KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      if (event.repeat && !"jk".includes(event.key)) return; // a key that is held down has not judged what comes next
      soon(() => { if (!editing) return KEYS[event.key](); });
    }
  });
  document.querySelectorAll("button[data-key]").forEach((button) => button.addEventListener("click", () => {
    if (!editing) soon(KEYS[button.dataset.key]);
  }));
  at("editor").addEventListener("submit", (event) => { event.preventDefault(); soon(save); });
  at("cancel").addEventListener("click", () => soon(close));
  at("filter").addEventListener("change", () => { document.activeElement.blur(); refit(); });

  soon(async () => {
    const { said } = await ask("questions");
    questions = said.questions;
    past = said.history;
    refit();
    document.documentElement.dataset.ready = "yes";
  });
})();
