// The chosen theme, and a language that Intl knows, before anything is drawn. Without a choice the system's theme is used.
try {
  const theme = localStorage.getItem("streamkit-theme")
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme
} catch { /* storage is off */ }
// A browser may name a language that Intl refuses, such as en-US@posix. The charts would not load then.
try {
  new Intl.NumberFormat(navigator.language)
} catch {
  Object.defineProperty(navigator, "language", { value: "en", configurable: true })
}
