// The chosen theme, before anything is drawn. Without a choice the system's is used.
try {
  const theme = localStorage.getItem("streamkit-theme")
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme
} catch { /* storage is off */ }
