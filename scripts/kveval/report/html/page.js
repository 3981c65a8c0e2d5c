// Following a link into a closed section opens the section, also in browsers that do not do so themselves.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("DOMContentLoaded", () => { if (location.hash) reveal(); });
addEventListener("DOMContentLoaded", () => {
  if (matchMedia("(max-width: 60rem)").matches) document.querySelector(".contents details").open = false;
});
// On paper nothing can be opened.
addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((part) => { part.open = true; }));
