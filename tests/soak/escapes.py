"""Attempts of a page to reach another host, as contents of the page.

In every text, `@U` stands for an address of the forbidden host, `@W` for its WebSocket address, `@S`
for its https address, `@H` for host and port, `@P` for the port, and `@G` for the page's own origin.
"""

# ruff: noqa: E501, UP031 - markup reads best on a line of its own

DOCUMENT = {
    "img": "<img src='@U/x.png'>",
    "img srcset": "<img srcset='@U/x.png 1x'>",
    "picture": "<picture><source srcset='@U/x.png'><img></picture>",
    "input image": "<input type=image src='@U/x.png'>",
    "video": "<video src='@U/x.mp4' preload=auto></video>",
    "audio": "<audio src='@U/x.mp3' preload=auto></audio>",
    "source": "<video preload=auto><source src='@U/x.mp4'></video>",
    "poster": "<video poster='@U/x.png'></video>",
    "track": "<video src='/x.mp4' crossorigin><track default kind=subtitles src='@U/x.vtt'></video>"
    "<script>document.querySelector('track').track.mode='showing'</script>",
    "svg image": "<svg><image href='@U/x.png' width=9 height=9 /></svg>",
    "svg use": "<svg><use href='@U/x.svg#a' /></svg>",
    "svg feImage": "<svg width=9 height=9><filter id=f><feImage href='@U/x.png' /></filter>"
    "<rect width=9 height=9 filter='url(#f)' /></svg>",
    "svg script": "<svg><script href='@U/x.js'></script></svg>",
    "body background": "<table background='@U/x.png'><tr><td>a</table>",
    "css background": "<p style='background:url(@U/x.png)'>a",
    "css import": "<style>@import '@U/x.css';</style>",
    "css font": "<style>@font-face{font-family:@P;src:url(@U/x.woff)}p{font-family:'@P'}</style>"
    "<script>new FontFace('f@P','url(@U/x.woff)').load().catch(()=>0)</script><p>a",
    "css cursor": "<p style='cursor:url(@U/x.png),auto'>a",
    "css list style": "<ul><li style='list-style-image:url(@U/x.png)'>a</ul>",
    "css border image": "<p style='border:9px solid;border-image:url(@U/x.png) 3'>a",
    "css mask": "<p style='mask-image:url(@U/x.png)'>a",
    "css content": "<p style='content:url(@U/x.png)'>a",
    "css image-set": "<p style='background:image-set(\"@U/x.png\" 1x)'>a",
    "css filter": "<p style='filter:url(@U/x.svg#a)'>a",
    "css shape": "<p style='float:left;shape-outside:url(@U/x.png)'>a",
    "stylesheet": "<link rel=stylesheet href='@U/x.css'>",
    "icon": "<link rel=icon href='@U/x.ico'>",
    "manifest": "<link rel=manifest href='@U/x.json'>",
    "preload image": "<link rel=preload as=image href='@U/x.png'>",
    "preload script": "<link rel=preload as=script href='@U/x.js'>",
    "preload style": "<link rel=preload as=style href='@U/x.css'>",
    "preload font": "<link rel=preload as=font crossorigin href='@U/x.woff'>",
    "preload fetch": "<link rel=preload as=fetch crossorigin href='@U/x.json'>",
    "modulepreload": "<link rel=modulepreload href='@U/x.js'>",
    "prefetch": "<link rel=prefetch href='@U/x.html'>",
    "prerender": "<link rel=prerender href='@U/x.html'>",
    "preconnect": "<link rel=preconnect href='@U'>",
    "dns-prefetch": "<link rel=dns-prefetch href='@U'>",
    "compression dictionary": "<link rel=compression-dictionary href='@U/x.dat'>",
    "script": "<script src='@U/x.js'></script>",
    "script defer": "<script defer src='@U/x.js'></script>",
    "script module": "<script type=module src='@U/x.js'></script>",
    "static import": "<script type=module>import '@U/x.js'</script>",
    "dynamic import": "<script>import('@U/x.js').catch(()=>0)</script>",
    "written script": "<script>document.write('<script src=\"@U/x.js\"><\\/script>')</script>",
    "innerHTML": "<p id=i@P></p><script>i@P.innerHTML='<img src=@U/x.png>'</script>",
    "DOMParser": "<script>document.body.append(document.adoptNode(new DOMParser().parseFromString("
    "'<img src=@U/x.png>','text/html').images[0]))</script>",
    "fetch": "<script>fetch('@U/x').catch(()=>0)</script>",
    "fetch no-cors": "<script>fetch('@U/x',{mode:'no-cors'}).catch(()=>0)</script>",
    "fetch preflight": "<script>fetch('@U/x',{method:'PUT',headers:{'X-A':'1'}}).catch(()=>0)</script>",
    "fetch keepalive": "<script>fetch('@U/x',{keepalive:true,method:'POST',body:'a',mode:'no-cors'})"
    ".catch(()=>0)</script>",
    "fetchLater": "<script>try{fetchLater('@U/x',{activateAfter:0})}catch(e){}</script>",
    "xhr": "<script>{const x=new XMLHttpRequest();x.open('GET','@U/x');x.send()}</script>",
    "xhr sync": "<script>try{const x=new XMLHttpRequest();x.open('GET','@U/x',false);x.send()}"
    "catch(e){}</script>",
    "beacon": "<script>navigator.sendBeacon('@U/x','a')</script>",
    "EventSource": "<script>new EventSource('@U/x')</script>",
    "WebSocket": "<script>new WebSocket('@W/x')</script>",
    "WebSocket tls": "<script>new WebSocket('wss://@H/x')</script>",
    "WebSocketStream": "<script>try{new WebSocketStream('@W/x').opened.catch(()=>0)}catch(e){}</script>",
    "Image": "<script>new Image().src='@U/x.png'</script>",
    "Audio": "<script>new Audio('@U/x.mp3').load()</script>",
    "iframe": "<iframe src='@U/x.html'></iframe>",
    "iframe lazy": "<iframe loading=eager src='@U/x.html'></iframe>",
    "object": "<object data='@U/x.html'></object>",
    "object svg": "<object type='image/svg+xml' data='@U/x.svg'></object>",
    "embed": "<embed src='@U/x.html' type='text/html'>",
    "portal": "<portal src='@U/x.html'></portal>",
    "fencedframe": "<fencedframe></fencedframe><script>try{document.querySelector('fencedframe')"
    ".config=new FencedFrameConfig('@U/x.html')}catch(e){}</script>",
    "frameset": "<iframe srcdoc=\"<frameset><frame src='@U/x.html'></frameset>\"></iframe>",
    "nested srcdoc": "<iframe srcdoc=\"<img src='@U/x.png'>\"></iframe>",
    "frame link": "<iframe name=t@P></iframe><a id=l@P href='@U/x.html' target=t@P>a</a>"
    "<script>l@P.click()</script>",
    "frame location": "<iframe id=f@P></iframe><script>f@P.contentWindow.location='@U/x.html'</script>",
    "frame form get": "<iframe name=g@P></iframe><form id=h@P action='@U/x.html' target=g@P></form>"
    "<script>h@P.submit()</script>",
    "frame form post": "<iframe name=g@P></iframe><form id=h@P method=post action='@U/x.html' "
    "target=g@P></form><script>h@P.submit()</script>",
    "frame meta": "<iframe srcdoc=\"<meta http-equiv=refresh content='0;url=@U/x.html'>\"></iframe>",
    "frame javascript": "<iframe src=\"javascript:location='@U/x.html'\"></iframe>",
    "frame open": "<iframe name=o@P></iframe><script>open('@U/x.html','o@P')</script>",
    "frame history": "<iframe id=k@P src='/empty'></iframe><script>k@P.onload=()=>{k@P.onload=null;"
    "k@P.contentWindow.history.pushState(0,'','/e2');k@P.contentWindow.location='@U/x.html'}</script>",
    "frame data image": "<iframe src=\"data:text/html,<img src='@U/x.png'>\"></iframe>",
    "frame blob image": "<script>{const f=document.createElement('iframe');f.src=URL.createObjectURL("
    "new Blob(['<img src=@U/x.png>'],{type:'text/html'}));document.body.append(f)}</script>",
    "frame written": "<iframe id=n@P></iframe><script>n@P.contentDocument.write('<img src=@U/x.png>')"
    "</script>",
    "ping": "<a id=p@P ping='@U/x' href='#a'>a</a><script>p@P.click()</script>",
    "speculation prefetch": '<script type=speculationrules>{"prefetch":[{"source":"list",'
    '"urls":["@U/x.html"],"eagerness":"immediate"}]}</script>',
    "speculation prerender": '<script type=speculationrules>{"prerender":[{"source":"list",'
    '"urls":["@U/x.html"],"eagerness":"immediate"}]}</script>',
    **{
        name: "<p id=q@P></p><script>{const s=document.createElement('script');s.type="
        "'speculationrules';s.textContent=JSON.stringify({prefetch:[{source:'list',urls:["
        "'@U/x.html'],eagerness:'immediate'}]});" + put + "}</script>"
        for name, put in (
            ("speculation by script", "document.body.append(s)"),
            ("speculation in a shadow tree", "q@P.attachShadow({mode:'open'}).append(s)"),
            ("speculation in a closed shadow tree", "q@P.attachShadow({mode:'closed'}).append(s)"),
            ("speculation retyped", "s.type='speculationrules';q@P.append(s);s.type='a'"),
            ("speculation in the head", "document.querySelector('head').append(s)"),
        )
    },
    "speculation of a fresh frame": "<iframe id=u@P></iframe><script>{const d=u@P.contentDocument,s="
    "d.createElement('script');s.type='speculationrules';s.textContent=JSON.stringify({prefetch:[{"
    "source:'list',urls:['@U/x.html'],eagerness:'immediate'}]});d.body.append(s)}</script>",
    "speculation by rules of the same host": '<script type=speculationrules>{"prefetch":[{'
    '"source":"list","urls":["/go/302?@U/x.html"],"eagerness":"immediate"}]}'
    "</script>",
    "paint worklet": "<script>try{CSS.paintWorklet.addModule('@U/x.js').catch(()=>0)}catch(e){}</script>",
    "audio worklet": "<script>try{new OfflineAudioContext(1,1,44100).audioWorklet.addModule('@U/x.js')"
    ".catch(()=>0)}catch(e){}</script>",
    "shared storage": "<script>try{sharedStorage.worklet.addModule('@U/x.js').catch(()=>0)}"
    "catch(e){}</script>",
    "attribution": "<img attributionsrc='@U/x'>",
    "worker of another origin": "<script>try{new Worker('@U/x.js')}catch(e){}</script>",
    "cache": "<script>caches.open('c').then(c=>c.add('@U/x')).catch(()=>0)</script>",
    "FedCM": "<script>navigator.credentials&&navigator.credentials.get({identity:{providers:[{"
    "configURL:'@U/fedcm.json',clientId:'1'}]}}).catch(()=>0)</script>",
    "payment": "<script>try{new PaymentRequest([{supportedMethods:'@S/pay'}],{total:{label:'a',"
    "amount:{currency:'EUR',value:'1'}}}).canMakePayment().catch(()=>0)}catch(e){}</script>",
    "related passkeys": "<script>navigator.credentials&&navigator.credentials.get({publicKey:{rpId:"
    "'evil.localhost',challenge:new Uint8Array(16)}}).catch(()=>0)</script>",
    "WebTransport": "<script>try{const t=new WebTransport('https://127.0.0.1:@P/x');"
    "t.ready.catch(()=>0);t.closed.catch(()=>0)}catch(e){}</script>",
    "WebTransport hashes": "<script>try{const t=new WebTransport('https://127.0.0.1:@P/x',"
    "{serverCertificateHashes:[{algorithm:'sha-256',value:new Uint8Array(32)}]});"
    "t.ready.catch(()=>0);t.closed.catch(()=>0)}catch(e){}</script>",
    **{
        name: "<script>{const c=new RTCPeerConnection({iceServers:[{urls:'%s',username:'a',"
        "credential:'b'}]%s});c.createDataChannel('a');c.createOffer().then(o=>"
        "c.setLocalDescription(o));(globalThis.kept??=[]).push(c)}</script>" % (url, more)
        for name, url, more in (
            ("STUN", "stun:127.0.0.1:@P", ""),
            ("TURN udp", "turn:127.0.0.1:@P?transport=udp", ""),
            ("TURN tcp", "turn:127.0.0.1:@P?transport=tcp", ""),
            ("TURN tls", "turns:127.0.0.1:@P?transport=tcp", ""),
            ("TURN relay only", "turn:127.0.0.1:@P?transport=udp", ",iceTransportPolicy:'relay'"),
        )
    },
    "RTC of a fresh frame": "<iframe id=r@P></iframe><script>{const c=new (r@P.contentWindow."
    "RTCPeerConnection)({iceServers:[{urls:'stun:127.0.0.1:@P'}]});c.createDataChannel('a');"
    "c.createOffer().then(o=>c.setLocalDescription(o));(globalThis.kept??=[]).push(c)}</script>",
    **{
        f"{name} of a fresh window": "<script>{const w="
        + opened
        + ";try{"
        + code
        + "}catch(e){}}</script>"
        for opened, names in (
            ("window.open('')", ("fetch", "WebSocket", "RTC")),
            ("document.open('','r@P','width=9')", ("RTC by document",)),
            (
                "(document.body.append(document.createElement('iframe')),frames[frames.length-1].open(''))",
                ("RTC by frame",),
            ),
        )
        for name in names
        for code in (
            {
                "fetch": "w.fetch('@U/x').catch(()=>0)",
                "WebSocket": "new w.WebSocket('@W/x')",
            }.get(
                name,
                "const c=new w.RTCPeerConnection({iceServers:[{urls:'stun:127.0.0.1:@P'}]});"
                "c.createDataChannel('a');c.createOffer().then(o=>c.setLocalDescription(o));"
                "(globalThis.kept??=[]).push(c)",
            ),
        )
    },
    "ICE candidate udp": "<script>(async()=>{const a=new RTCPeerConnection,b=new RTCPeerConnection;"
    "(globalThis.kept??=[]).push(a,b);a.createDataChannel('x');await a.setLocalDescription(await "
    "a.createOffer());await b.setRemoteDescription(a.localDescription);await b.setLocalDescription("
    "await b.createAnswer());await a.setRemoteDescription(b.localDescription);await a.addIceCandidate("
    "{candidate:'candidate:1 1 udp 2122260223 127.0.0.1 @P typ host',sdpMid:'0'})})()</script>",
}
"""HTML that requests the address without a navigation of its document."""

NAVIGATION = {
    "location": "<script>location='@U/x.html'</script>",
    "location.replace": "<script>location.replace('@U/x.html')</script>",
    "location.assign": "<script>location.assign('@U/x.html')</script>",
    "location.host": "<script>location.host='@H'</script>",
    "meta refresh": "<meta http-equiv=refresh content='0;url=@U/x.html'>",
    "link": "<a id=a href='@U/x.html'>a</a><script>a.click()</script>",
    "link download": "<a id=a download href='@U/x.bin'>a</a><script>a.click()</script>",
    "area": "<map><area id=a href='@U/x.html'></map><script>a.click()</script>",
    "svg link": "<svg><a id=a href='@U/x.html'><text>a</text></a></svg>"
    "<script>a.dispatchEvent(new MouseEvent('click',{bubbles:true}))</script>",
    "base": "<base href='@U/'><a id=a href='x.html'>a</a><script>a.click()</script>",
    "form get": "<form id=f action='@U/x.html'></form><script>f.submit()</script>",
    "form post": "<form id=f method=post action='@U/x.html'></form><script>f.submit()</script>",
    "form multipart": "<form id=f method=post enctype=multipart/form-data action='@U/x.html'>"
    "<input name=a value=b></form><script>f.submit()</script>",
    "formaction": "<form><button id=b formaction='@U/x.html'>a</button></form><script>b.click()</script>",
    "javascript link": "<a id=a href=\"javascript:location='@U/x.html'\">a</a><script>a.click()</script>",
    "open self": "<script>open('@U/x.html','_self')</script>",
    "navigation API": "<script>navigation.navigate('@U/x.html').finished.catch(()=>0)</script>",
    "javascript form": "<form id=f action=\"javascript:location='@U/x.html'\"></form>"
    "<script>f.submit()</script>",
    "view-source": "<script>location='view-source:@U/x.html'</script>",
    "after a timer": "<script>setTimeout(()=>location='@U/x.html',30)</script>",
    "after history": "<script>history.pushState(0,'','/empty');location='@U/x.html'</script>",
    "data document": "<script>location='data:text/html,<img src=@U/x.png>'</script>",
    "blob document": "<script>location=window.URL.createObjectURL(new Blob(['<img src=\"@U/x.png\">'],"
    "{type:'text/html'}))</script>",
    "filesystem document": "<script>location='filesystem:@U/temporary/x.html'</script>",
    "unload beacon": "<script>onpagehide=()=>navigator.sendBeacon('@U/x');location='/empty'</script>",
    "opener": "<script>if(window.opener)opener.document.body.append(Object.assign("
    "opener.document.createElement('img'),{src:'@U/x.png'}));else location='@U/x.html'</script>",
}
"""Pages that navigate away."""

HEADERS: dict[str, tuple[int, dict[str, str]]] = {
    **{f"redirect {code}": (code, {"Location": "@U/x.html"}) for code in (301, 302, 303, 307, 308)},
    "Refresh": (200, {"Refresh": "0;url=@U/x.html"}),
    "Link preload": (200, {"Link": "<@U/x.png>;rel=preload;as=image"}),
    "Link stylesheet": (200, {"Link": "<@U/x.css>;rel=stylesheet"}),
    "Link preconnect": (200, {"Link": "<@U>;rel=preconnect"}),
    "Link prefetch": (200, {"Link": "<@U/x.html>;rel=prefetch"}),
    "Link modulepreload": (200, {"Link": "<@U/x.js>;rel=modulepreload"}),
    "early hints": (103, {"Link": "<@U/x.css>;rel=preload;as=style"}),
    "Speculation-Rules": (200, {"Speculation-Rules": '"@U/rules.json"'}),
    "CSP report-uri": (200, {"Content-Security-Policy": "img-src 'none';report-uri @U/r"}),
    "CSP report-only": (
        200,
        {"Content-Security-Policy-Report-Only": "img-src 'none';report-uri @U/r"},
    ),
    "Reporting": (
        200,
        {
            "Reporting-Endpoints": 'e="@U/r"',
            "Content-Security-Policy": "img-src 'none';report-to e",
        },
    ),
    "NEL": (
        200,
        {
            "Report-To": '{"group":"n","max_age":99,"endpoints":[{"url":"@U/r"}]}',
            "NEL": '{"report_to":"n","max_age":99,"success_fraction":1}',
        },
    ),
    "Alt-Svc": (200, {"Alt-Svc": 'h3="@H"; ma=99, h2="@H"'}),
    "attachment": (302, {"Location": "@U/x.bin", "Content-Disposition": "attachment"}),
    "two hops": (302, {"Location": "/hop/@P"}),
}
"""Responses of the allowed host; the document violates their policies, so they are reported."""

WORKER = {
    "fetch": "fetch('@U/x').catch(()=>0)",
    "fetch no-cors": "fetch('@U/x',{mode:'no-cors'}).catch(()=>0)",
    "fetch keepalive": "fetch('@U/x',{keepalive:true,method:'POST',mode:'no-cors',body:'a'})"
    ".catch(()=>0)",
    "fetch redirected": "fetch('/go/302?@U/x',{mode:'no-cors'}).catch(()=>0)",
    "xhr": "{const x=new XMLHttpRequest();x.open('GET','@U/x');x.send()}",
    "EventSource": "new EventSource('@U/x')",
    "WebSocket": "new WebSocket('@W/x')",
    "WebSocket tls": "new WebSocket('wss://@H/x')",
    "WebTransport": "{const t=new WebTransport('https://127.0.0.1:@P/x',{serverCertificateHashes:[{"
    "algorithm:'sha-256',value:new Uint8Array(32)}]});t.ready.catch(()=>0);t.closed.catch(()=>0)}",
    "importScripts": "importScripts('@U/x.js')",
    "importScripts redirected": "importScripts('/go/302?@U/x.js')",
    "dynamic import": "import('@U/x.js').catch(()=>0)",
    "cache": "caches.open('c').then(c=>c.add('@U/x')).catch(()=>0)",
    "nested worker fetch": "new Worker(URL.createObjectURL(new Blob([\"fetch('@U/x')\"])))",
    "nested worker socket": "new Worker(URL.createObjectURL(new Blob([\"new WebSocket('@W/x')\"])))",
    "font": "new FontFace('f','url(@U/x.woff)').load().catch(()=>0)",
}
"""JavaScript that runs in workers."""

WINDOWS = {
    "window.open": "<script>window.open('@R')</script>",
    "window.open noopener": "<script>window.open('@R','_blank','noopener')</script>",
    "window.open named": "<script>window.open('@R','n@P')</script>",
    "window.open sized": "<script>window.open('@R','','width=200,height=200')</script>",
    "empty then location": "<script>window.open('').location='@R'</script>",
    "empty then later": "<script>{const w=window.open('');setTimeout(()=>w.location='@R',20)}</script>",
    "empty then link": "<script>{const w=window.open('');w.document.write(\"<a id=a href='@R'>a</a>\");"
    "w.document.getElementById('a').click()}</script>",
    "link _blank": "<a id=b@P target=_blank href='@R'>a</a><script>b@P.click()</script>",
    "link opener": "<a id=b@P target=_blank rel=opener href='@R'>a</a><script>b@P.click()</script>",
    "link named": "<a id=b@P target=w@P href='@R'>a</a><script>b@P.click()</script>",
    "form get": "<form id=f@P target=_blank action='@R'></form><script>f@P.submit()</script>",
    "form post": "<form id=f@P target=_blank method=post action='@R'><input name=a value=b></form>"
    "<script>f@P.submit()</script>",
    "form opener": "<form id=f@P target=_blank rel=opener method=post action='@R'></form>"
    "<script>f@P.submit()</script>",
}
"""HTML that opens a window at `@R`, an address of the page's origin that leads away."""

SPELLINGS = {
    "plain": "http://evil.localhost:@P/x",
    "trailing dot": "http://shop.localhost.:@P/x",
    "upper case": "http://EVIL.LOCALHOST:@P/x",
    "userinfo": "http://shop.localhost@evil.localhost:@P/x",
    "userinfo and port": "http://shop.localhost:80@evil.localhost:@P/x",
    "percent-encoded": "http://%65vil.localhost:@P/x",
    "percent-encoded dot": "http://evil%2elocalhost:@P/x",
    "full width": "http://ｅｖｉｌ.localhost:@P/x",
    "ideographic stop": "http://evil。localhost:@P/x",
    "punycode": "http://xn--evl-6pa.localhost:@P/x",
    "umlaut": "http://evíl.localhost:@P/x",
    "soft hyphen": "http://ev\u00adil.localhost:@P/x",
    "cyrillic": "http://shор.localhost:@P/x",
    "backslashes": "http:\\\\evil.localhost:@P\\x",
    "backslash userinfo": "http://evil.localhost:@P\\@shop.localhost/x",
    "one slash": "http:/\\evil.localhost:@P/x",
    "no scheme": "//evil.localhost:@P/x",
    "tab inside": "http://ev\til.localhost:@P/x",
    "newline inside": "ht\ntp://evil.localhost:@P/x",
    "leading space": "  http://evil.localhost:@P/x",
    "leading zeros of the port": "http://evil.localhost:00@P/x",
    "prefix": "http://shop.localhost.evil.localhost:@P/x",
    "suffix": "http://notshop.localhost:@P/x",
    "below": "http://a.shop.localhost:@P/x",
    "parent": "http://localhost:@P/x",
    "dotted": "http://127.0.0.1:@P/x",
    "another loopback": "http://127.0.0.2:@P/x",
    "decimal": "http://2130706433:@P/x",
    "octal": "http://0177.0.0.1:@P/x",
    "hexadecimal": "http://0x7f.0.0.1:@P/x",
    "hexadecimal whole": "http://0x7f000001:@P/x",
    "short": "http://127.1:@P/x",
    "any": "http://0.0.0.0:@P/x",
    "zero": "http://0:@P/x",
    "mapped": "http://[::ffff:127.0.0.1]:@P/x",
    "mapped hexadecimal": "http://[::ffff:7f00:1]:@P/x",
    "version 6": "http://[::1]:@P/x",
    "version 6 long": "http://[0:0:0:0:0:0:0:1]:@P/x",
    "other port": "http://shop.localhost:@P/x",
    "other port, https": "https://shop.localhost:@P/x",
    "https": "https://evil.localhost:@P/x",
    "hash before": "http://evil.localhost:@P#@shop.localhost/x",
    "question before": "http://evil.localhost:@P?@shop.localhost/x",
    "ftp": "ftp://evil.localhost:@P/x",
    "ws": "ws://evil.localhost:@P/x",
}
"""Unusual spellings of the forbidden host, and other ports of the allowed host."""
