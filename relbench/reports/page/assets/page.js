// Starts everything.

function startTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  prefersDark.addEventListener("change", name);
  name();
}

startTheme();
startFilters();
startFacts();
for (const host of document.querySelectorAll("[data-table]")) new TableView(TABLES.get(host.dataset.table), host);
if (document.getElementById("map")) new HeatMap(TABLES.get("deltas"));
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.how")) details.open = true;
});
document.documentElement.dataset.ready = "yes";
