"""A headless browser without a GPU, which opens a page and says what became of it."""

import html
import re
import shutil
import subprocess

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SOFTWARE = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def open_page(page, *flags, profile, script=""):
    """What a page with something to turn is once it came to rest: the attributes of its figure, its title, all of it.

    The script runs once the figure is drawn, which it calls ``figure``.
    """
    if script:
        figure = "const figure=document.querySelector('figure.turned')"
        wait = f"(function go(){{{figure};if(figure.dataset.state!=='drawn')return setTimeout(go,100);{script}}})()"
        allowed = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page.read_text())
        page.write_text(allowed.replace("</body>", f"<script>{wait}</script></body>"))
    words = [BROWSER, "--headless", "--no-sandbox", *flags, f"--user-data-dir={profile}"]
    words += ["--window-size=400,300", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=200)
    figure = re.search(r"<figure([^>]*)>", done.stdout)[1]
    title = html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    return dict(re.findall(r'data-(\w+)="([^"]*)"', figure)), title, done.stdout
